-- Creates rows; see submission.lua. ARGV: nonce, columns, `one` or `many`. Returns the keys that exist.
if ARGV[3] == 'many' then  -- a single one has no neighbours, and is to cost little
  see_that_they_can_wait(1)
end
return submit(1)
