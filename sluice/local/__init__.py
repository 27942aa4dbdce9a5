"""The embedded cloud: AWS in one process on loopback, and our stacks deployed to it with the real `cdk deploy`.

`cloud` is that process; `server` and what it uses run inside it; `deployer` is the CDK command line against it.
No function's bundle contains this package.
"""
