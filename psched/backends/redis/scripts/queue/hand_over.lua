-- Advances a schedule (ARGV 1 to 7) and with that submits rows (from ARGV 8 on), in one step.
local answer = advance()
if answer[1] == 'done' then
  submit(8)
end
return answer
