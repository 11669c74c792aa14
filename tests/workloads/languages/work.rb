# For each line on its input: calls, objects and a collection of garbage, ten times.
class Thing
  attr_reader :number

  def initialize(number)
    @number = number
  end
end

def called(number)
  Thing.new(number).number
end

$stdout.sync = true
puts "ready"
while $stdin.gets
  10.times do |number|
    called(number)
    GC.start
  end
  puts "done"
end
exit 7
