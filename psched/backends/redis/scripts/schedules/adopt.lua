-- Enters the definitions of schedules that are older than the ledger. ARGV: 1 when that is all and the table is upgraded
-- (else 0), then keys.
for place = 2, #ARGV do
  if call('TYPE', row_of(ARGV[place])).ok == 'hash' then
    version_of(ARGV[place])
  end
end
if ARGV[1] == '1' then
  call('HSET', KEYS[1], 'layout', LAYOUTS.schedules)
end
