<?php
// For each line on its input: calls and objects, ten times.
class Thing
{
    public $number;

    public function __construct($number)
    {
        $this->number = $number;
    }
}

function called($number)
{
    return (new Thing($number))->number;
}

echo "ready\n";
while (fgets(STDIN) !== false) {
    for ($number = 0; $number < 10; $number++) {
        called($number);
        gc_collect_cycles();
    }
    echo "done\n";
}
exit(7);
