-- Gives back what a dead holder leases. ARGV: holder, the longest wait in milliseconds, the most rows, the error of what
-- it was running, then the keys of that, which wait. Returns how many rows were given back.
local held = T .. 'held:' .. ARGV[1]
local longest, most, suspects, count = tonumber(ARGV[2]), tonumber(ARGV[3]), {}, 0
for place = 5, #ARGV do
  suspects[ARGV[place]] = true
end
for _, key in ipairs(marked(held)) do
  if count == most then
    break
  end
  local row = row_of(key)
  local is = redis.pcall('HMGET', row, 'status', 'crashes')
  if is[1] ~= 'running' then  -- somebody deleted the hash alone, or put something else there
    call('SREM', held, key)
  else
    insist(row)
    grow(row, 'fence', 1)
    grow(row, suspects[key] and 'crashes' or 'attempts', suspects[key] and 1 or -1)
    if suspects[key] then
      call('HSET', row, 'last_error', ARGV[4])
    end
    settle(key, now + (suspects[key] and crash_wait(tonumber(is[2]) or 0, longest) or 0))
    count = count + 1
  end
end
return count
