"""Integrations with other packages: extras, which no other package of psched imports."""
