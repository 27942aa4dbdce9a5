"""What a message carries from site to site, and what is sent where of it. Pure."""
