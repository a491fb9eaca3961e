-- Makes a leased row due now, the attempt not counted. ARGV: key, lease. Returns {'done'}, or why not.
local refused = refusal(row_of(ARGV[1]), ARGV[2])
if refused then
  return refused
end
insist(row_of(ARGV[1]))
grow(row_of(ARGV[1]), 'attempts', -1)
settle(ARGV[1], now, ending(row_of(ARGV[1]), ARGV[2], 'released'))
return {'done'}
