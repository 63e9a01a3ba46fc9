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

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/traas-stack/altershield-operator/hack/simulator/journal"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

const (
	// checkTime is how long each check of the server runs.
	checkTime = 300 * time.Millisecond
	// unlucky begins the names of pods that fail, for those who try things after the last step.
	unlucky = "unlucky-"
	// patience bounds the wait for a line of the journal.
	patience = 2 * time.Minute
)

// server is the simulator of AlterShield Server. Its journal is written to a file as it grows.
type server struct {
	*simulator.Simulator
	tokenFile, logPath string
	narrator           *journal.Narrator

	mu  sync.Mutex
	log *os.File
	// lines are the journal since FailNext.
	lines []string
}

// startServer starts a server that keeps its token and its journal below dir.
func startServer(dir string) (_ *server, err error) {
	s := &server{
		tokenFile: filepath.Join(dir, "altershield-token"),
		logPath:   filepath.Join(dir, "logs", "altershield-server.log"),
		narrator:  journal.NewNarrator(),
	}
	token := rand.Text()
	// A file that is there would keep its mode.
	if err := os.Remove(s.tokenFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := os.WriteFile(s.tokenFile, []byte(token+"\n"), 0o600); err != nil {
		return nil, err
	}
	if s.log, err = os.Create(s.logPath); err != nil {
		return nil, err
	}
	s.Simulator = simulator.New(simulator.Options{Token: token, OnEntry: s.entry})
	s.Script(simulator.Script{Delay: checkTime})
	s.fail("luck", "the pod is called "+unlucky+"...", 0, simulator.Match{Location: regexp.MustCompile("^" + unlucky)})
	if err := s.Start("127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *server) stop() error {
	s.Shutdown()
	return s.log.Close()
}

// managerArgs connect a manager.
func (s *server) managerArgs() []string {
	return []string{"--altershield-url=" + s.URL(), "--altershield-token-file=" + s.tokenFile}
}

// fail fails checks of pods by a rule.
func (s *server) fail(rule, message string, times int, match simulator.Match) {
	match.CheckType, match.Stage = altershield.CheckBatch, altershield.StagePost
	s.Script(simulator.Script{
		Match: match, Delay: checkTime, Verdict: altershield.VerdictFail, Times: times,
		Rules: []altershield.Rule{{Name: rule, Msg: message, Verdict: altershield.VerdictFail}},
	})
}

// FailNext implements [walkthrough.Server].
func (s *server) FailNext(workload, pod string) {
	s.mu.Lock()
	s.lines = nil
	s.mu.Unlock()
	s.fail("error rate", "5xx above 1 %", 1, simulator.Match{Workload: workload, Location: regexp.MustCompile(pod)})
}

// Show implements [walkthrough.Server].
func (s *server) Show(ctx context.Context, lines, until string) error {
	wanted, last := regexp.MustCompile(lines), regexp.MustCompile(until)
	var found []string
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		found = slices.Clone(s.lines)
		return slices.ContainsFunc(found, last.MatchString), nil
	})
	if err != nil {
		return fmt.Errorf("wait for %q in the journal of the server: %w", until, err)
	}
	fmt.Println()
	for _, line := range found {
		if wanted.MatchString(line) {
			fmt.Println(line)
		}
	}
	return nil
}

// entry takes down an entry of the journal.
func (s *server) entry(e simulator.Entry) {
	if e.Action == altershield.ActionHeartbeat {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	line := s.narrator.Line(e).String()
	s.lines = append(s.lines, line)
	fmt.Fprintln(s.log, line)
}
