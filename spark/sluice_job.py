"""StartJobRun's entryPoint: the package is in the job's environment, the script is what EMR Serverless is given."""

import sys

from sluice_jobs.main import main

sys.exit(main())
