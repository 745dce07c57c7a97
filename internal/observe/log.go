package observe

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// logBytes bounds what waits to be written: at level debug one call can
	// log its program and its output, a few megabytes.
	logBytes = 16 << 20
	// logLines bounds how many lines that is.
	logLines = 4096
	// logGrace is how long Close waits for a reader.
	logGrace = time.Second
)

// Log is a writer in front of one that can stall, such as standard error when
// the journal is full: it never blocks, and drops lines that nobody takes.
// Create it with NewLog.
type Log struct {
	out     io.Writer
	lines   chan []byte
	waiting atomic.Int64 // bytes in lines
	dropped prometheus.Counter
	quit    chan struct{}
	done    chan struct{}
	once    sync.Once
}

// NewLog returns a Log that writes to out. Each Write is one line. A nil
// Registerer leaves the count of dropped lines unregistered.
func NewLog(out io.Writer, reg prometheus.Registerer) *Log {
	l := &Log{
		out: out, lines: make(chan []byte, logLines), quit: make(chan struct{}), done: make(chan struct{}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: Namespace, Name: "log_dropped_total",
			Help: "Log lines that were dropped because nobody took them.",
		}),
	}
	if reg != nil {
		reg.MustRegister(l.dropped)
	}
	go l.run()
	return l
}

// Write takes a line and returns its length, always.
func (l *Log) Write(p []byte) (int, error) {
	if l.waiting.Add(int64(len(p))) > logBytes {
		l.waiting.Add(-int64(len(p)))
		l.dropped.Inc()
		return len(p), nil
	}
	select {
	case l.lines <- bytes.Clone(p):
	default:
		l.waiting.Add(-int64(len(p)))
		l.dropped.Inc()
	}
	return len(p), nil
}

func (l *Log) run() {
	defer close(l.done)
	for {
		select {
		case line := <-l.lines:
			l.write(line)
			continue
		default:
		}
		select {
		case line := <-l.lines:
			l.write(line)
		case <-l.quit: // and nothing waits
			return
		}
	}
}

func (l *Log) write(line []byte) {
	_, _ = l.out.Write(line) // there is nowhere left to tell of it
	l.waiting.Add(-int64(len(line)))
}

// Close writes what waits, unless that takes long.
func (l *Log) Close() {
	l.once.Do(func() { close(l.quit) })
	select {
	case <-l.done:
	case <-time.After(logGrace):
	}
}
