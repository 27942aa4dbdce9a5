"""The documents' pictures, drawn from what the code says: `python -m docs.pictures` writes them beside this file."""
