"""What ministack does otherwise than AWS always does, mended in its process: each patch says what AWS does."""
