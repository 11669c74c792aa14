// Does map operations from deep stacks of goroutines, and says if its code has been changed to answer them itself.
package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"
)

const sysBpf = 321

type create struct{ kind, key, value, entries, flags uint32 }

type element struct {
	fd, _             uint32
	key, value, flags uint64
}

func bpf(command uintptr, attribute unsafe.Pointer, size uintptr) (uintptr, syscall.Errno) {
	result, _, errno := syscall.RawSyscall(sysBpf, command, uintptr(attribute), size)
	return result, errno
}

//go:noinline
func deep(depth int, work func() uint64) uint64 {
	if depth == 0 {
		return work()
	}
	var pad [24]byte
	pad[depth%24] = 1
	return deep(depth-1, work) + uint64(pad[0])*0
}

func main() {
	attribute := create{kind: 1, key: 8, value: 8, entries: 64}
	fd, errno := bpf(0, unsafe.Pointer(&attribute), unsafe.Sizeof(attribute))
	if errno != 0 {
		fmt.Println("create:", errno)
		os.Exit(1)
	}
	sums := make(chan uint64)
	for depth := 0; depth < 400; depth++ {
		go func() {
			sums <- deep(depth, func() uint64 {
				key, value, found := new(uint64), new(uint64), new(uint64)
				*key, *value = uint64(depth%64), uint64(depth)
				change := &element{fd: uint32(fd), key: uint64(uintptr(unsafe.Pointer(key))), value: uint64(uintptr(unsafe.Pointer(value)))}
				bpf(2, unsafe.Pointer(change), unsafe.Sizeof(*change))
				change.value = uint64(uintptr(unsafe.Pointer(found)))
				bpf(1, unsafe.Pointer(change), unsafe.Sizeof(*change))
				return *found
			})
		}()
		<-sums
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	fmt.Println("fast path:", strings.Contains(string(maps), "-fast-path"))
}
