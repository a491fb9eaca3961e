-- Returns the last entry of a schedule before an occurrence that was run by a definition; nothing when there is none.
-- ARGV: key, occurrence, version.
local entries, at_once, first = T .. 'entries:' .. ARGV[1], 100, 0
local member = ',"version":' .. ARGV[3] .. ','
repeat
  local found = call('ZREVRANGEBYSCORE', entries, '(' .. ARGV[2], '-inf', 'LIMIT', first, at_once)
  for _, entry in ipairs(found) do
    if entry:find(member, 1, true) then
      return entry
    end
  end
  first = first + at_once
until #found < at_once
return false
