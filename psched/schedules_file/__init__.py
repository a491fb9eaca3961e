"""Schedules as code: a file, or an application, declares the schedules of one owner.

`reader` and `writer` are about the file, `plan` compares declared schedules with those of a store and applies the
difference, `rollback` plans the way back to earlier definitions.
"""
