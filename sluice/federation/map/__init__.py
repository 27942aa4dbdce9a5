"""What all sites say of their links, put together and drawn. Pure."""
