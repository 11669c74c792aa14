// As leaf.c, in Go: asks for its parent as often as its argument says, and ends with that number for its exit code.
package main

import (
	"os"
	"strconv"
	"syscall"
)

func main() {
	times, _ := strconv.Atoi(os.Args[1])
	for i := 0; i < times; i++ {
		syscall.Getppid()
	}
	os.Exit(times)
}
