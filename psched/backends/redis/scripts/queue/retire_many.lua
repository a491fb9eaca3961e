-- Ends leased rows for good. ARGV: status, retention in milliseconds ('' for ever), then keys and leases. Returns for each
-- row nothing when that is done, else why not.
local outcome, retention, answers = ARGV[1], ARGV[2], {}
for place = 3, #ARGV, 2 do
  local key = ARGV[place]
  local row = row_of(key)
  local refused = refusal(row, ARGV[place + 1])
  if not refused then
    insist(row)
    quit(key)
    retire(key, outcome, retention, ending(row, ARGV[place + 1], outcome))
  end
  answers[#answers + 1] = refused or false
end
return answers
