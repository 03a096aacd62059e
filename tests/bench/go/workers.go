// Goroutines that are waited for together.
package main

import "sync"

type workers struct{ group sync.WaitGroup }

// start runs the function in a goroutine of its own.
func (w *workers) start(work func()) {
	w.group.Add(1)
	go func() {
		defer w.group.Done()
		work()
	}()
}

func (w *workers) wait() { w.group.Wait() }
