"""Schedules as code: a file, or an application, declares the schedules of one owner.

`reader` and `writer` are about the file.
"""
