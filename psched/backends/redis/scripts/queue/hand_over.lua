-- Advances a schedule (ARGV as advance.lua says) and with that submits rows (from there on), in one step.
see_that_they_can_wait(1 + ADVANCE)
local answer = advance(1)
if answer[1] == 'done' then
  submit(1 + ADVANCE)
end
return answer
