"""Our stacks on the embedded cloud, by the CDK command line: the same synth, bootstrap and deploy as on AWS.

What is there already isn't made again: an assembly of the same sources and parameters, a bootstrapped place, a site
whose stacks are as they were deployed from the same assembly.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sluice.building.interpreters import cdk
from sluice.building.project import PROJECT, take_place
from sluice.errors import SluiceError
from sluice.local import assemblies
from sluice.local.assemblies import TOOLKIT, Assembly
from sluice.local.cloud import Cloud, clean_environment, tail
from sluice.local.sites import Site

TIMEOUT_S = 600
# The templates' validation takes eight seconds to start, only warns, and says of these what it says of AWS's.
UNATTENDED = {"CDK_DISABLE_CLI_TELEMETRY": "true", "CDK_VALIDATION": "false"}
STACKS_AT_ONCE = "4"  # those that depend on nothing but the state
BEGINS = re.compile(r"(\S+): deploying\.\.\.")


class DeploymentFailed(SluiceError):
    """A CDK command failed; the text has the end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedStack:
    """What CloudFormation says of a stack. `stamp` changes with each deployment that changes it."""

    stamp: str
    outputs: Mapping[str, str]


def deployed_stacks(cloud: Cloud, site: Site) -> Mapping[str, DeployedStack]:
    """Ask for all stacks of the site's place, by name."""
    from sluice.aws.clients import calls  # noqa: PLC0415 - boto3 takes longer than all of --help
    from sluice.aws.connections import of_environment  # noqa: PLC0415 - see above

    client = of_environment(cloud.environment(site)).client("cloudformation")
    with calls("DescribeStacks"):
        pages = list(client.get_paginator("describe_stacks").paginate())
    return {
        stack["StackName"]: DeployedStack(
            stamp=f"{stack['StackId']} {stack.get('LastUpdatedTime', stack['CreationTime']).isoformat()}",
            outputs={each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])},
        )
        for page in pages
        for stack in page["Stacks"]
    }


def _silent(_: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployer:
    """Deploys one set of parameters to sites.

    `progress` is told each step before it begins, and `expect` how many more there are, or fewer, as soon as that is
    known; both by several threads.
    """

    cloud: Cloud
    context: Mapping[str, object] = field(default_factory=dict)  # on top of cdk.json: parameter to value
    progress: Callable[[str], None] = _silent
    expect: Callable[[int], None] = _silent
    cdk: Callable[[], Path] = cdk
    stacks_of: Callable[[Cloud, Site], Mapping[str, DeployedStack]] = deployed_stacks
    assemblies: Path = assemblies.FOLDER

    def deploy(self, *sites: Site) -> Cloud:
        """Synthesizes once a stage, then bootstraps and deploys all sites side by side, each only where that is due.

        Returns the cloud with these sites noted. Where one fails, raises its `DeploymentFailed` once none is under way.
        """
        stages = dict.fromkeys(site.stage for site in sites)
        made = {stage: self.assembly(stage) for stage in stages}
        with ThreadPoolExecutor(len(sites)) as executor:
            there = dict(zip(sites, executor.map(lambda site: self.stacks_of(self.cloud, site), sites), strict=True))
            due = [site for site in sites if self.cloud.deployed.get(str(site)) != _note(made[site.stage], there[site])]
            # What bootstrapping makes is for all sites of an account and region.
            places = {(site.account, site.region): site for site in due}.values()
            bare = [site for site in places if _bootstrapped(there[site]) < made[site.stage].bootstrap_version]
            self.expect(len(bare) + sum(len(made[site.stage].stacks) for site in due))
            list(executor.map(self._bootstrap, bare))
            list(executor.map(lambda site: self._deploy(site, made[site.stage]), due))
            there |= dict(zip(due, executor.map(lambda site: self.stacks_of(self.cloud, site), due), strict=True))
        for site in set(sites) - set(due):
            self.progress(f"{site}: nothing has changed")
        cloud = self.cloud
        for site in sites:
            cloud = cloud.with_site(site, _note(made[site.stage], there[site]))
        return cloud

    def assembly(self, stage: str | None = None) -> Assembly:
        """Find the assembly of a stage, or make it."""
        # Bundles for this machine's processor and interpreter, which run the functions.
        at_stage = {"sluice.stage": stage} if stage else {}
        own = {"sluice.architecture": "local", "sluice.operations.dashboard": "true", **at_stage}
        parameters = {**own, **self.context}
        context = {name: each if isinstance(each, str) else json.dumps(each) for name, each in parameters.items()}
        key = assemblies.key_of(context)
        found = assemblies.find(key, self.assemblies)
        if found is not None:
            return found
        self.expect(1)
        self.progress("synthesizing the stacks")
        self.assemblies.mkdir(parents=True, exist_ok=True)
        assemblies.forget_old(self.assemblies)
        with tempfile.TemporaryDirectory(dir=self.assemblies, prefix="new-") as folder:
            new = Path(folder) / "cdk.out"
            options = [f"--context={name}={text}" for name, text in context.items()]
            synth = ["synth", "--app", PROJECT.app, "--quiet", "--output", str(new), *options]
            self._run(synth, clean_environment(), log="cdk.log", folder=PROJECT.workspace)
            take_place(new, self.assemblies / key)
        return Assembly(self.assemblies / key)

    def _bootstrap(self, site: Site) -> None:
        self.progress(f"{site}: bootstrapping")
        self._cdk(site, ["bootstrap", f"aws://{site.account}/{site.region}"])

    def _deploy(self, site: Site, assembly: Assembly) -> None:
        app = str(assembly.folder)
        self._cdk(
            site, ["deploy", "--all", "--app", app, "--require-approval", "never", "--concurrency", STACKS_AT_ONCE]
        )

    def _cdk(self, site: Site, arguments: Sequence[str]) -> None:
        log = f"cdk-{site.account}-{site.region}{f'-{site.stage}' if site.stage else ''}.log"

        def told(line: str) -> None:
            if begins := BEGINS.match(line):
                self.progress(f"{site}: deploying {begins[1]}")

        environment = clean_environment() | self.cloud.environment(site)
        # Where no cdk.json is: all that these commands need is in the assembly.
        self._run(arguments, environment, log=log, folder=self.cloud.folder, told=told)

    def _run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        log: str,
        folder: Path,
        told: Callable[[str], None] = _silent,
    ) -> None:
        log_file = self.cloud.folder / log
        # The app and the command line run with the Python and the Node of this environment.
        path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
        with log_file.open("a") as output:
            output.write(f"$ cdk {' '.join(arguments)}\n")
            output.flush()
            process = subprocess.Popen(  # noqa: S603 - our own arguments
                [str(self.cdk()), *arguments, "--no-notices", "--ci"],
                cwd=folder,
                env={**environment, **UNATTENDED, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            overdue = threading.Timer(TIMEOUT_S, process.kill)
            overdue.start()
            with process:
                for line in process.stdout or ():
                    output.write(line)
                    told(line)
            in_time = overdue.is_alive()
            overdue.cancel()
        if process.returncode or not in_time:
            how = "failed" if in_time else f"took longer than {TIMEOUT_S} s"
            raise DeploymentFailed(f"cdk {arguments[0]} {how}; all of it is in {log_file}\n{tail(log_file)}")


def _note(assembly: Assembly, there: Mapping[str, DeployedStack]) -> Mapping[str, str]:
    """Write down what a site is deployed from, and as what: another deployment by anybody makes another of it."""
    stamps = {name: there[name].stamp for name in assembly.stacks if name in there}
    return {"assembly": assembly.digest, **stamps}


def _bootstrapped(there: Mapping[str, DeployedStack]) -> int:
    """Tell by which version a place is bootstrapped; -1 where it isn't."""
    return int(there[TOOLKIT].outputs.get("BootstrapVersion", 0)) if TOOLKIT in there else -1
