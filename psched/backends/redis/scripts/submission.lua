-- Creates the rows that stand in ARGV from `first` on: a nonce, then for each row key, type, data, run_at ('' for now),
-- user, max_running (or ''), priority and max_attempts (or ''). Returns the keys that exist, but for those that a call
-- with this very nonce has written.
local function submit(first)
  local nonce, present, news, fence = ARGV[first], {}, 0, nil
  for place = first + 1, #ARGV, 8 do
    local key, row = ARGV[place], row_of(ARGV[place])
    if call('EXISTS', row) == 1 then
      if call('HGET', row, 'nonce') ~= nonce then
        present[#present + 1] = key
      end
    else
      local type, user, priority = ARGV[place + 1], ARGV[place + 4], ARGV[place + 6]
      local run_at = ARGV[place + 3] == '' and whole(now) or ARGV[place + 3]
      fence = fence or first_fence(T)
      local fields = {'type', type, 'data', ARGV[place + 2], 'run_at', run_at, 'user', user, 'priority', priority,
        'nonce', nonce, 'fence', fence, 'attempts', '0', 'crashes', '0', 'cancel_requested', '0', 'created', whole(now),
        'status', 'waiting', 'due', run_at, 'updated', whole(now)}
      for offset, name in pairs({[5] = 'max_running', [7] = 'max_attempts'}) do
        if ARGV[place + offset] ~= '' then
          fields[#fields + 1], fields[#fields + 2] = name, ARGV[place + offset]
        end
      end
      call('HSET', row, unpack(fields))
      call('ZADD', T .. 'keys', 0, key)
      stand(key, type, user, tonumber(priority), tonumber(run_at))
      news = news + 1
    end
  end
  ring(T, news)
  return present
end
