"""Integrations with other packages. Each needs an extra, and no other package of psched imports them."""
