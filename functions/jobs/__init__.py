"""The jobs function, which starts and cancels runs of the pipeline's jobs."""
