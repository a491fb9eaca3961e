-- Makes leased rows due later. ARGV: for each row its key, lease, the wait in milliseconds and the error ('' for none).
-- Returns for each {'done'}, or why not.
local answers = {}
for place = 1, #ARGV, 4 do
  local key, wait, problem = ARGV[place], ARGV[place + 2], ARGV[place + 3]
  local row = row_of(key)
  local answer = refusal(row, ARGV[place + 1])
  if not answer then
    insist(row)
    call('HSET', row, 'crashes', '0')
    if problem ~= '' then
      call('HSET', row, 'last_error', problem)
    end
    settle(key, now + tonumber(wait))
    answer = {'done'}
  end
  answers[#answers + 1] = answer
end
return answers
