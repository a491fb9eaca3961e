-- Writes the data of a leased row. ARGV: key, lease, data, its size. Returns {'done'}, or why not.
local row = row_of(ARGV[1])
local refused = refusal(row, ARGV[2])
if refused then
  return refused
end
call('HSET', row, 'data', ARGV[3], 'size', ARGV[4], 'updated', whole(now))
return {'done'}
