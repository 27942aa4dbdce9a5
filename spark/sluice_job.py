"""The script that EMR Serverless starts as a run's `entryPoint`. The environment contains package `sluice_jobs`."""

import sys

from sluice_jobs.main import main

sys.exit(main())
