// A Go program: static, its own stacks of 2 KB, its own threads and signals.
// Same protocol as counts.c; in a round 1,000 calls of main.Work, in 10 goroutines, with garbage to collect.
package main

import (
	"bufio"
	"fmt"
	"os"
)

// Kept from one round to the next, so that there is garbage.
var kept = make([][]byte, 10)

// A leaf: it calls nothing, so it has no check for room on the stack. A function that has one begins anew when its
// stack was moved, and a probe at its start sees that as one more call.
//
//go:noinline
func Work(n int, who int) int {
	return n*3 + who
}

func sum(who int, result chan<- int) {
	total := 0
	for i := 0; i < 100; i++ {
		kept[who] = make([]byte, 1000+i)
		total += Work(i, who)
	}
	result <- total
}

func main() {
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		result := make(chan int)
		for who := range kept {
			go sum(who, result)
		}
		total := 0
		for range kept {
			total += <-result
		}
		fmt.Println("done", total)
	}
	os.Exit(7)
}
