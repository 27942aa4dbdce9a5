"""Lambda functions: each package has one function's handler and creates its dependencies."""
