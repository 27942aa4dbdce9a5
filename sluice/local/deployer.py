"""Our stacks on the embedded cloud, by the CDK command line: the same synth, bootstrap and deploy as on AWS."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sluice.errors import SluiceError
from sluice.local.cloud import Cloud, clean_environment, tail
from sluice.local.sites import Site
from sluice.node import cdk
from sluice.project import PROJECT

APP = "python -m sluice.stacks.app"
TIMEOUT_S = 600
# The templates' validation takes eight seconds to start, only warns, and says of these what it says of AWS's.
UNATTENDED = {"CDK_DISABLE_CLI_TELEMETRY": "true", "CDK_VALIDATION": "false"}
STACKS_AT_ONCE = "4"  # those that depend on nothing but the state


class DeploymentFailed(SluiceError):
    """A CDK command failed; the text has the end of its output."""


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployer:
    """Deploys one set of parameters to sites. `progress` is told each step before it begins."""

    cloud: Cloud
    context: Mapping[str, object] = field(default_factory=dict)  # on top of cdk.json: parameter to value
    progress: Callable[[str], None] = _silent

    def deploy(self, *sites: Site) -> Cloud:
        """Synthesizes once a stage, then bootstraps and deploys all sites side by side.

        Returns the cloud with these sites noted. Where one fails, raises its `DeploymentFailed` once none is under way.
        """
        self.progress("synthesizing the stacks")
        for stage in dict.fromkeys(site.stage for site in sites):
            self._synth(stage)
        with ThreadPoolExecutor(len(sites)) as executor:
            # What bootstrapping makes is for all sites of an account and region.
            list(executor.map(self._bootstrap, {(site.account, site.region): site for site in sites}.values()))
            list(executor.map(self._deploy, sites))
        cloud = self.cloud
        for site in sites:
            cloud = cloud.with_site(site)
        return cloud

    def _bootstrap(self, site: Site) -> None:
        self.progress(f"{site}: bootstrapping")
        app = str(self._assembly(site.stage))
        self._cdk(site, ["bootstrap", f"aws://{site.account}/{site.region}", "--app", app])

    def _deploy(self, site: Site) -> None:
        self.progress(f"{site}: deploying")
        app = str(self._assembly(site.stage))
        self._cdk(
            site, ["deploy", "--all", "--app", app, "--require-approval", "never", "--concurrency", STACKS_AT_ONCE]
        )

    def destroy(self, site: Site) -> None:
        """Delete the stacks; what is protected stays."""
        self.progress(f"{site}: destroying")
        self._cdk(site, ["destroy", "--all", "--force", "--app", str(self._assembly(site.stage))])

    def _assembly(self, stage: str | None) -> Path:
        return self.cloud.folder / (f"cdk.out-{stage}" if stage else "cdk.out")

    def _synth(self, stage: str | None) -> None:
        # Bundles for this machine's processor and interpreter, which run the functions.
        at_stage = {"sluice.stage": stage} if stage else {}
        own = {"sluice.architecture": "local", "sluice.operations.dashboard": "true", **at_stage}
        parameters = {**own, **self.context}
        texts = {name: each if isinstance(each, str) else json.dumps(each) for name, each in parameters.items()}
        context = [f"--context={name}={text}" for name, text in texts.items()]
        self._run(
            ["synth", "--app", APP, "--quiet", "--output", str(self._assembly(stage)), *context],
            clean_environment(),
            log="cdk.log",
        )

    def _cdk(self, site: Site, arguments: Sequence[str]) -> None:
        log = f"cdk-{site.account}-{site.region}{f'-{site.stage}' if site.stage else ''}.log"
        self._run(arguments, clean_environment() | self.cloud.environment(site), log=log)

    def _run(self, arguments: Sequence[str], environment: Mapping[str, str], *, log: str) -> None:
        log_file = self.cloud.folder / log
        # The app and the command line run with the Python and the Node of this environment.
        path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
        with log_file.open("ab") as output:
            output.write(f"$ cdk {' '.join(arguments)}\n".encode())
            output.flush()
            try:
                subprocess.run(  # noqa: S603 - our own arguments
                    [str(cdk()), *arguments, "--no-notices", "--ci"],
                    cwd=PROJECT.workspace,
                    env={**environment, **UNATTENDED, "PATH": path},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=TIMEOUT_S,
                    check=True,
                )
            except subprocess.SubprocessError as error:
                how = f"took longer than {TIMEOUT_S} s" if isinstance(error, subprocess.TimeoutExpired) else "failed"
                end = tail(log_file)
                raise DeploymentFailed(f"cdk {arguments[0]} {how}; all of it is in {log_file}\n{end}") from None
