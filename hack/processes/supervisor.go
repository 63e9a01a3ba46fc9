/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package processes runs programs for tests and the demo, and ends them: each by
// its own process, and on Linux with this process. It also finds free ports.
package processes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// launcher starts processes from one OS thread. The kernel kills them when that
// thread ends (see childAttributes). The thread of an ordinary goroutine might end
// before the program.
type launcher struct {
	requests chan launchRequest
}

type launchRequest struct {
	cmd    *exec.Cmd
	result chan<- error
}

func newLauncher() *launcher {
	l := &launcher{requests: make(chan launchRequest)}
	go func() {
		// It is never unlocked: the thread ends with the goroutine, at close.
		runtime.LockOSThread()
		for r := range l.requests {
			r.result <- r.cmd.Start()
		}
	}()
	return l
}

func (l *launcher) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	l.requests <- launchRequest{cmd: cmd, result: result}
	return <-result
}

func (l *launcher) close() { close(l.requests) }

// Process is a program that runs, or that ended and was not started again.
type Process struct {
	name string
	cmd  *exec.Cmd
	// done is closed after the process has ended; err is valid from then on.
	done chan struct{}
	err  error
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Err returns the error of a process that has exited.
func (p *Process) Err() error { return p.err }

// Exited reports whether the process has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop ends the process and waits for it: with SIGTERM first, unless the grace
// period is 0.
func (p *Process) stop(grace time.Duration) error {
	if grace <= 0 {
		return p.kill()
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("terminate %s: %w", p.name, err)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	return p.kill()
}

// kill ends the process at once, as a crash does, and waits for it.
func (p *Process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// Supervisor owns processes that end together. Its methods may be called concurrently.
type Supervisor struct {
	dir      string
	launcher *launcher

	mu      sync.Mutex
	stopped bool
	// running are the processes, including crashed ones until the next start.
	running []*Process
}

// New returns a supervisor without processes. It writes their logs to dir/logs.
func New(dir string) *Supervisor {
	return &Supervisor{dir: dir, launcher: newLauncher()}
}

// LogPath returns the path of the log of a process.
func (s *Supervisor) LogPath(name string) string {
	return filepath.Join(s.dir, "logs", name+".log")
}

// Start starts a program, in the directory of the supervisor, under a name that no running process has. Its log is appended to.
func (s *Supervisor) Start(name, path string, args []string) (*Process, error) {
	// The process has no context: stop ends it.
	cmd := exec.Command(path, args...) //nolint:noctx // see above
	cmd.Dir = s.dir
	cmd.Env = environment(s.dir)
	cmd.SysProcAttr = childAttributes()
	return s.launch(name, cmd)
}

// launch starts a command under a name that no running process has, and appends its
// output to its log.
func (s *Supervisor) launch(name string, cmd *exec.Cmd) (*Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, fmt.Errorf("start %s: all were stopped", name)
	}
	s.running = slices.DeleteFunc(s.running, func(p *Process) bool { return p.name == name && p.Exited() })
	if slices.ContainsFunc(s.running, func(p *Process) bool { return p.name == name }) {
		return nil, fmt.Errorf("%s runs already", name)
	}
	if err := os.MkdirAll(filepath.Dir(s.LogPath(name)), 0o750); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(s.LogPath(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	fmt.Fprintf(log, "# %s: %s %s\n", time.Now().Format(time.RFC3339), cmd.Path, strings.Join(cmd.Args[1:], " "))
	cmd.Stdout = log
	cmd.Stderr = log
	if err := s.launcher.start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	s.running = append(s.running, p)
	return p, nil
}

// environment returns the environment of a program: ours without variables that
// name another cluster or a user's configuration.
func environment(dir string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "KUBECONFIG=") || strings.HasPrefix(v, "KUBERNETES_SERVICE_") ||
			strings.HasPrefix(v, "ETCD_") || strings.HasPrefix(v, "KWOK_") || strings.HasPrefix(v, "HOME=")
	})
	return append(env, "HOME="+dir)
}

// Get returns the process of a name, or nil.
func (s *Supervisor) Get(name string) *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.running {
		if p.name == name {
			return p
		}
	}
	return nil
}

// PIDs returns the process IDs of all processes that were not stopped.
func (s *Supervisor) PIDs() (pids []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.running {
		pids = append(pids, p.PID())
	}
	return pids
}

// Stop ends a process, if it runs: with SIGTERM first, unless the grace period is 0.
func (s *Supervisor) Stop(name string, grace time.Duration) error {
	p := s.Get(name)
	if p == nil {
		return nil
	}
	if err := p.stop(grace); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(q *Process) bool { return q == p })
	return nil
}

// StopAll ends all processes for good: first the processes in no tier, then tier by
// tier, all processes of a tier at once.
func (s *Supervisor) StopAll(grace time.Duration, tiers ...[]string) error {
	s.mu.Lock()
	s.stopped = true
	var others []string
	for _, p := range s.running {
		if !slices.Contains(slices.Concat(tiers...), p.name) {
			others = append(others, p.name)
		}
	}
	s.mu.Unlock()

	var errs []error
	for _, tier := range slices.Concat([][]string{others}, tiers) {
		results := make([]error, len(tier))
		var stopping sync.WaitGroup
		for i, name := range tier {
			stopping.Go(func() { results[i] = s.Stop(name, grace) })
		}
		stopping.Wait()
		errs = append(errs, results...)
	}
	s.launcher.close()
	return errors.Join(errs...)
}

// LogTail returns the end of the log of a process.
func (s *Supervisor) LogTail(name string) string {
	const most = 25
	data, err := os.ReadFile(s.LogPath(name))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
