"""The master process: forks, supervises and replaces children."""
