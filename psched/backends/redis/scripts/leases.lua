-- What schedules and queue tasks have in common, on top of their own `row_of`, `settle`, `renew`, `take` and `remove`.

-- Makes rows as they were before acquires (a set of their numbers) of a holder, whose answers were lost.
local function undo(holder, numbers)
  if not next(numbers) then
    return
  end
  for _, key in ipairs(call('SMEMBERS', T .. 'held:' .. holder)) do
    local row = row_of(key)
    local was = call('HMGET', row, 'claim', 'ready')
    if numbers[was[1]] then
      grow(row, 'attempts', -1)
      settle(key, tonumber(was[2]))
    end
  end
end
