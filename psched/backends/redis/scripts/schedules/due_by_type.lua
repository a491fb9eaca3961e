-- Returns each type that has rows, followed by the milliseconds until its earliest row is due.
return due_by_type({'due:'})
