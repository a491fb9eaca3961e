-- What schedules and queue tasks have in common, on top of their own `row_of`, `settle`, `renew`, `take` and `remove`.

-- Makes rows as they were before acquires of a holder whose answers were lost: `spans` has the first and the last number of
-- acquires in a row, one pair after another.
local function undo(holder, spans)
  if #spans == 0 then
    return
  end
  for _, key in ipairs(marked(T .. 'held:' .. holder)) do
    local row = row_of(key)
    local was = redis.pcall('HMGET', row, 'claim', 'ready')
    local number = tonumber(was[1]) or -1
    for place = 1, #spans, 2 do
      if number >= tonumber(spans[place]) and number <= tonumber(spans[place + 1]) then
        grow(row, 'attempts', -1)
        settle(key, tonumber(was[2]) or now)
        break
      end
    end
  end
end
