"""Deploys our stacks to the embedded cloud with the CDK's command line: synth, bootstrap and deploy as on AWS.

Skips steps that would change nothing. Equal sources and parameters share an assembly, each account and region is
bootstrapped once, and a site is skipped if the assembly was deployed and its stacks haven't changed since.
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
from typing import TYPE_CHECKING

from sluice.building.interpreters import cdk
from sluice.building.project import PROJECT, move_into_place
from sluice.errors import SluiceError
from sluice.local import assemblies
from sluice.local.assemblies import TOOLKIT, Assembly
from sluice.local.cloud import Cloud, clean_environment, tail
from sluice.local.sites import Site

if TYPE_CHECKING:  # Importing boto3 takes longer than `--help`.
    from sluice.aws.deployment import StackView

TIMEOUT_S = 600
# The CDK's template validation is off: it takes eight seconds to start, and gives only warnings, the same as for AWS.
UNATTENDED = {"CDK_DISABLE_CLI_TELEMETRY": "true", "CDK_VALIDATION": "false"}
CONCURRENT_STACKS = "4"  # number of stacks that are deployed at once
DEPLOYING_LINE = re.compile(r"(\S+): deploying\.\.\.")


class DeploymentFailed(SluiceError):
    """A CDK command failed. The error's text contains the end of the command's output."""


def list_stacks(cloud: Cloud, site: Site) -> "Mapping[str, StackView]":
    """Return all stacks in the site's account and region, by name."""
    from sluice.aws import connections, deployment  # noqa: PLC0415 - boto3 takes longer than all of --help

    return deployment.list_stacks(connections.connect_environment(cloud.environment(site)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployer:
    """Deploys sites with one set of parameters.

    Calls `progress` before each step. Calls `expect` with each change of the expected number of steps, as soon as the
    change is known. Several threads make these calls.
    """

    cloud: Cloud
    context: Mapping[str, object] = field(default_factory=dict)  # parameter values that override cdk.json
    progress: Callable[[str], None] = lambda _: None
    expect: Callable[[int], None] = lambda _: None
    cdk: Callable[[], Path] = cdk
    stacks_of: "Callable[[Cloud, Site], Mapping[str, StackView]]" = list_stacks
    assemblies: Path = assemblies.FOLDER

    def deploy(self, *sites: Site) -> Cloud:
        """Synthesize an assembly per stage, then bootstrap and deploy all sites concurrently. Skips unneeded steps.

        Returns the cloud, with these sites recorded. Raises `DeploymentFailed` if one fails, after all have ended.
        """
        stages = dict.fromkeys(site.stage for site in sites)
        made = {stage: self.assembly(stage) for stage in stages}

        def bootstrap(site: Site) -> None:
            self.progress(f"{site}: bootstrapping")
            self._run_cdk(site, ["bootstrap", f"aws://{site.account}/{site.region}"])

        def deploy(site: Site) -> None:
            app = str(made[site.stage].folder)
            options = ["--require-approval", "never", "--concurrency", CONCURRENT_STACKS]
            self._run_cdk(site, ["deploy", "--all", "--app", app, *options])

        with ThreadPoolExecutor(len(sites)) as executor:
            stacks = dict(zip(sites, executor.map(lambda site: self.stacks_of(self.cloud, site), sites), strict=True))
            due = [
                site
                for site in sites
                if self.cloud.deployed.get(str(site)) != _deployment_record(made[site.stage], stacks[site])
            ]
            # Sites in one account and region share a bootstrap stack, even if their stages differ.
            places = {(site.account, site.region): site for site in due}.values()
            versions = {
                site: int(stacks[site][TOOLKIT].outputs.get("BootstrapVersion", 0))
                for site in places
                if TOOLKIT in stacks[site]
            }
            bare = [site for site in places if versions.get(site, -1) < made[site.stage].bootstrap_version]
            self.expect(len(bare) + sum(len(made[site.stage].stacks) for site in due))
            list(executor.map(bootstrap, bare))
            list(executor.map(deploy, due))
            stacks |= dict(zip(due, executor.map(lambda site: self.stacks_of(self.cloud, site), due), strict=True))
        for site in set(sites) - set(due):
            self.progress(f"{site}: nothing has changed")
        cloud = self.cloud
        for site in sites:
            cloud = cloud.with_site(site, _deployment_record(made[site.stage], stacks[site]))
        return cloud

    def assembly(self, stage: str | None = None) -> Assembly:
        """Return the cached assembly of a stage, or synthesize the assembly."""
        # Bundles must fit this machine's processor and Python. AWS's concurrency would start too many processes here.
        concurrency = dict.fromkeys(("sluice.splitting.max_concurrency", "sluice.federation.max_concurrency"), "10")
        at_stage = {"sluice.stage": stage} if stage else {}
        own = {"sluice.architecture": "local", "sluice.operations.dashboard": "true", **concurrency, **at_stage}
        parameters = {**own, **self.context}
        context = {name: value if isinstance(value, str) else json.dumps(value) for name, value in parameters.items()}
        key = assemblies.compute_assembly_key(context)
        cached = assemblies.find_cached(key, self.assemblies)
        if cached is not None:
            return cached
        self.expect(1)
        self.progress("synthesizing the stacks")
        self.assemblies.mkdir(parents=True, exist_ok=True)
        assemblies.delete_old_assemblies(self.assemblies)
        with tempfile.TemporaryDirectory(dir=self.assemblies, prefix="new-") as folder:
            new = Path(folder) / "cdk.out"
            options = [f"--context={name}={text}" for name, text in context.items()]
            synth = ["synth", "--app", PROJECT.cdk_app_command, "--quiet", "--output", str(new), *options]
            self._run(synth, clean_environment(), log="cdk.log", folder=PROJECT.workspace)
            move_into_place(new, self.assemblies / key)
        return Assembly(self.assemblies / key)

    def _run_cdk(self, site: Site, arguments: Sequence[str]) -> None:
        log = f"cdk-{site.account}-{site.region}{f'-{site.stage}' if site.stage else ''}.log"

        def report_stack(line: str) -> None:
            if begins := DEPLOYING_LINE.match(line):
                self.progress(f"{site}: deploying {begins[1]}")

        environment = clean_environment() | self.cloud.environment(site)
        # This folder has no cdk.json: the assembly contains everything that the command needs.
        self._run(arguments, environment, log=log, folder=self.cloud.folder, on_line=report_stack)

    def _run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        log: str,
        folder: Path,
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        log_file = self.cloud.folder / log
        # The CDK app and its command line run with the Python and the Node of this environment.
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
            overdue.daemon = True  # Otherwise the program waits for the timer after ctrl-C.
            overdue.start()
            with process:
                for line in process.stdout or ():
                    output.write(line)
                    on_line(line)
            in_time = overdue.is_alive()
            overdue.cancel()
        if process.returncode or not in_time:
            how = "failed" if in_time else f"took longer than {TIMEOUT_S} s"
            raise DeploymentFailed(f"cdk {arguments[0]} {how}; all of it is in {log_file}\n{tail(log_file)}")


def _deployment_record(assembly: Assembly, stacks: "Mapping[str, StackView]") -> Mapping[str, str]:
    """Return a record of the deployed assembly and stacks, which differs after any other deployment."""
    deployed = {name: stacks[name] for name in assembly.stacks if name in stacks}
    stamps = {name: f"{stack.stack_id} {stack.changed_ms}" for name, stack in deployed.items()}
    return {"assembly": assembly.digest, **stamps}
