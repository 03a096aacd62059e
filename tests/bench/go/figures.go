// Counting and latencies of concurrent calls.
package main

import (
	"slices"
	"sync"
)

// failures counts what failed and keeps the first error.
type failures struct {
	mutex sync.Mutex
	count int
	first error
}

func (f *failures) add(err error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.count++
	if f.first == nil {
		f.first = err
	}
}

func (f *failures) countNow() int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.count
}

// text is the first error, empty if there is none.
func (f *failures) text() string {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.first == nil {
		return ""
	}
	return f.first.Error()
}

// joined sorts the values of all callers.
func joined(parts [][]int64) []int64 {
	all := slices.Concat(parts...)
	slices.Sort(all)
	return all
}

// quantile of sorted values, 0 if there are none.
func quantile(sorted []int64, share float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(share*float64(len(sorted)-1))]
}
