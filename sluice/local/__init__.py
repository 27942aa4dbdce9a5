"""The embedded cloud: an AWS emulator in one process on loopback, to which `cdk deploy` deploys our stacks.

Module `cloud` starts and finds the process; `server` runs in the process; `deployer` calls the CDK's command line. No
function's bundle contains this package.
"""
