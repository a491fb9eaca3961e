-- Returns the number of the call that created a row, and the row's fence; nothing when there is no row. ARGV: key.
local row = row_of(ARGV[1])
if call('EXISTS', row) == 0 then
  return false
end
local fence = redis.pcall('HGET', row, 'fence')
return {nonce_of(row), type(fence) == 'string' and fence or ''}
