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

package processes

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childEnv makes this test binary the parent in TestChildrenEndWithTheirParent.
const childEnv = "PROCESSES_TEST_PARENT_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		os.Exit(parentOfTail(dir))
	}
	os.Exit(m.Run())
}

func TestFreePorts(t *testing.T) {
	ports, err := FreePorts(20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] || port < 1024 {
			t.Errorf("port %d of %v", port, ports)
		}
		seen[port] = true
		if first := ephemeralStart(); first > lowestPort+1000 && port >= first {
			t.Errorf("port %d is in the kernel's range for clients, from %d on", port, first)
		}
	}
	if len(seen) != 20 {
		t.Errorf("%d ports, want 20", len(seen))
	}
}

// tailProgram returns the path of tail, which runs until it is killed.
func tailProgram(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("tail")
	if err != nil {
		t.Skip("no tail on this machine")
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestChildrenEndWithTheirParent kills a process that has started a program, so that it
// cannot clean up.
func TestChildrenEndWithTheirParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends children with their parent")
	}
	program := tailProgram(t)
	dir := t.TempDir()
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	runs := func() bool {
		exe, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
		return err == nil && exe == program // a zombie has no program
	}
	if !runs() {
		t.Fatalf("process %d is not the program", pid)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // killed
	eventually(t, 10*time.Second, func() error {
		if runs() {
			return errors.New("the program outlives its parent")
		}
		return nil
	})
}

// parentOfTail starts a program, prints its pid and waits.
func parentOfTail(dir string) int {
	program, err := exec.LookPath("tail")
	if err != nil {
		return 1
	}
	s := New(dir)
	p, err := s.Start("tail", program, []string{"-f", s.LogPath("tail")})
	if err != nil {
		return 1
	}
	_, _ = os.Stdout.WriteString(strconv.Itoa(p.PID()) + "\n")
	<-p.done
	return 0
}

func TestSupervisorStops(t *testing.T) {
	s := New(t.TempDir())
	p, err := s.Start("stubborn", "/bin/sh", []string{"-c", "trap '' TERM; echo armed; while :; do sleep 0.1; done"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start("stubborn", "/bin/sh", nil); err == nil {
		t.Error("two processes of one name")
	}
	eventually(t, 10*time.Second, func() error {
		if !strings.Contains(s.LogTail("stubborn"), "\narmed") {
			return errors.New("not armed yet")
		}
		return nil
	})
	if err := s.StopAll(100*time.Millisecond, []string{"absent"}); err != nil {
		t.Fatal(err)
	}
	if !p.Exited() {
		t.Error("the process was not waited for")
	}
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process is still there: %v", err)
	}
	if _, err := s.Start("late", "/bin/sh", nil); err == nil {
		t.Error("a stopped supervisor started something")
	}
}

// eventually calls check until it returns nil.
func eventually(t *testing.T, timeout time.Duration, check func() error) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(timeout); ; <-ticker.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", timeout, err)
		}
	}
}
