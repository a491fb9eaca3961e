"""Schedules as code: a file, or an application, declares the schedules of one owner.

`reader` and `writer` read and write the file. `plan` compares declared schedules with those of a store and applies the
differences. `rollback` plans the return to earlier definitions.
"""
