-- Advances many. ARGV: for each what `advance` takes. Returns the answer for each.
local answers = {}
for first = 1, #ARGV, ADVANCE do
  answers[#answers + 1] = advance(first)
end
return answers
