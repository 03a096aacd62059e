"""Authentication and authorization of the proxy's calls."""
