// Go functions that return on stacks that grow, and so move. Same protocol as counts.c; in a round 64 goroutines, in threads of
// their own, recurse 2,000 calls deep, with garbage to collect.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
)

const (
	Goroutines = 64
	Depth      = 2000
)

// Returns from two places.
//
//go:noinline
func Parity(n int) (int, bool) {
	if n%2 == 1 {
		return n * 3, true
	}
	return n, false
}

var kept [Goroutines][]byte

// Needs a frame of some size, so the stack is moved several times.
//
//go:noinline
func Deep(n int, who int) int {
	var frame [16]int
	for i := range frame {
		frame[i] = n + i
	}
	if n == 0 {
		kept[who] = make([]byte, 1000)
		return frame[who%16]
	}
	if n%500 == 0 {
		runtime.GC()
	}
	got, _ := Parity(n)
	return Deep(n-1, who) + got + frame[n%16] - n
}

// Panics, and returns by what recovers.
//
//go:noinline
func Recovers(n int) (got int) {
	defer func() {
		if recover() != nil {
			got = -n
		}
	}()
	if n%2 == 1 {
		panic("odd")
	}
	return n
}

type Inner struct{ n int }

//go:noinline
func (inner *Inner) Get(more int) int { return inner.n + more }

// Its Get is a jump to that of Inner.
type Outer struct{ *Inner }

type Getter interface{ Get(int) int }

//go:noinline
func Gets(getter Getter, n int) int { return getter.Get(n) }

func main() {
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		result := make(chan int)
		for who := 0; who < Goroutines; who++ {
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				result <- Deep(Depth, who) + Recovers(who) + Gets(&Outer{&Inner{who}}, 1)
			}()
		}
		total := 0
		for i := 0; i < Goroutines; i++ {
			total += <-result
		}
		fmt.Println("done", total)
	}
	os.Exit(7)
}
