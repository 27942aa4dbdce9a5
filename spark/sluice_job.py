"""The script that EMR Serverless starts as a run's `entryPoint`; package `sluice_jobs` is in the job's environment."""

import sys

from sluice_jobs.main import main

sys.exit(main())
