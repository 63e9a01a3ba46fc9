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

package docs

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

// update writes the output of commands into the documents:
//
//	go test ./test/docs -run TestCommands/docs/getting-started/first-block.md -update
//
// Outputs with "..." stay as they are.
var update = flag.Bool("update", false, "write the output of commands into the documents")

// patience bounds the wait for any one condition.
const patience = 90 * time.Second

// step changes how a command of a document is run. A command without a step is run as it is.
type step struct {
	// command is the text in the document; blanks and the random ends of pod names may differ.
	command string
	// skip is the reason why the command is not run.
	skip string
	// fill replaces placeholders of the document.
	fill func(s *story, command string) string
	// before prepares the cluster; after waits for the effects that the document describes.
	before, after func(s *story)
	// code is the wanted exit code.
	code int
}

// story runs the commands of a document in their order, in a shell, on a real control plane with a running manager.
type story struct {
	*stage
	t        *testing.T
	path     string
	preamble []string
	env      []string
	// printed has the outputs that differ from the document, with -update.
	printed []output
}

// output is what a command of a document printed.
type output struct {
	command
	text string
}

// stage is the control plane, manager and server for the stories of a group of documents.
type stage struct {
	cluster *controlplane.ControlPlane
	manager *controlplane.Manager
	server  *simulator.Simulator
	root    string
	// dir is a directory with links to the files of the repository. Commands may create files in it.
	dir string
	// plugins is the directory of the kubectl plugin.
	plugins string
	// metrics is the address of the manager's metrics.
	metrics string
}

var (
	// notRun matches commands that are not run here: TestMakeTargets checks make, test/chart runs helm, and the others need more than
	// this machine.
	notRun = regexp.MustCompile(`^(make|git|cd|go|helm|sha256sum|gh|cosign|skopeo|ctr) `)
	// assignment matches a variable or a function for later commands.
	assignment = regexp.MustCompile(`^[A-Za-z_]+=\$\([^;]*$|^[a-z]+\(\) *\{`)
	// mention matches the name of a command in a sentence.
	mention = regexp.MustCompile(`^kubectl( rollout)? [a-z]+( -k| --type=json)?$`)
	// reading matches commands that change nothing: they are repeated until their output fits.
	reading = regexp.MustCompile(`\bkubectl( -n \S+)? (get|describe|explain|rollout history|altershield (status|explain|history))( |$)`)
	failure = regexp.MustCompile(`(?m)^([Ee]rror|The \w+ "[^"]+" is invalid)`)
	blanks  = regexp.MustCompile(`\s+`)
)

// TestCommands runs the commands of the documents, and compares their outputs with the documents. Each group has a stage of its own;
// groups run in parallel.
func TestCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	built := sync.OnceValue(func() built { return build(t) })
	var groups sync.WaitGroup
	defer groups.Wait()
	for _, group := range groupsOfDocuments {
		groups.Go(func() {
			on := sync.OnceValue(func() *stage { return startStage(t, built()) })
			for _, path := range group {
				if path == translated || slices.Contains(forPipelines, path) {
					continue // translated has the commands of README.md
				}
				t.Run(path, func(t *testing.T) {
					if on() == nil {
						t.Fatal("the stage did not start")
					}
					runDocument(t, on(), path)
				})
			}
		})
	}
}

// runDocument runs the commands of one document.
func runDocument(t *testing.T, on *stage, path string) {
	s := &story{stage: on, t: t, path: path}
	of := stories[path]
	if of.begin != nil {
		of.begin(s)
	}
	used := map[string]int{}
	for _, c := range read(t, path).commands() {
		name := normal(c.text)
		steps := slices.DeleteFunc(slices.Clone(of.steps), func(st step) bool { return normal(st.command) != name })
		var st step
		if len(steps) > 0 {
			st = steps[min(used[name], len(steps)-1)]
		}
		used[name]++
		if !s.run(c, st) {
			t.Errorf("%s: later commands need this command, so they are not run", c)
			break
		}
	}
	if !t.Failed() {
		for _, st := range of.steps {
			if used[normal(st.command)]--; used[normal(st.command)] < 0 {
				t.Errorf("%s: stories_test.go has a step for the command %q, which the document does not have; remove the step", path, st.command)
			}
		}
	}
	if of.end != nil {
		of.end(s)
	}
	s.showPrinted()
}

// normal returns a command without the parts that may differ in the document.
func normal(command string) string {
	return strings.TrimSpace(blanks.ReplaceAllString(podName.ReplaceAllString(command, "$1-POD"), " "))
}

// built has the checkout, the programs of a control plane, and the directory of the plugin.
type built struct{ root, programs, plugins string }

// build builds the programs of all stages; the result is empty on failure.
func build(t *testing.T) (b built) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	root, plugins := repository(t), t.TempDir()
	if out, err := exec.CommandContext(ctx, "make", "-s", "-C", root, "build").CombinedOutput(); err != nil {
		t.Errorf("make build: %v\n%s", err, out)
		return b
	}
	plugin := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", plugins, "./cmd/kubectl-altershield")
	plugin.Dir, plugin.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := plugin.CombinedOutput(); err != nil {
		t.Errorf("build the plugin: %v\n%s", err, out)
		return b
	}
	programs, err := controlplane.Build(ctx, root, t.Output())
	if err != nil {
		t.Error(err)
		return b
	}
	return built{root, programs, plugins}
}

// startStage starts the control plane of a stage; it returns nil on failure.
func startStage(t *testing.T, b built) *stage {
	if b.root == "" {
		return nil
	}
	s := &stage{root: b.root, plugins: b.plugins, dir: t.TempDir()}
	// Each entry is a link, so that new files do not get into the repository.
	entries, err := os.ReadDir(s.root)
	if err != nil {
		t.Error(err)
		return nil
	}
	for _, e := range entries {
		if err := os.Symlink(filepath.Join(s.root, e.Name()), filepath.Join(s.dir, e.Name())); err != nil {
			t.Error(err)
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if s.cluster, err = controlplane.Start(ctx, controlplane.Options{BinDir: b.programs, Out: t.Output()}); err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() {
		if err := s.cluster.Stop(); err != nil {
			t.Error(err)
		}
		if s.server != nil {
			s.server.Shutdown()
		}
	})
	return s
}

// run runs a command of the document, and reports whether later commands can run.
func (s *story) run(c command, st step) bool {
	s.t.Helper()
	switch text := c.text; {
	case st.skip != "":
		return true
	case notRun.MatchString(text):
		if c.shown {
			s.t.Errorf("%s: the output below %q cannot be checked", c, text)
		}
		return true
	case c.inProse && strings.HasPrefix(text, pluginCommand+" "):
		return true // TestPluginCommands checks it
	case mention.MatchString(text) && st.fill == nil && st.before == nil:
		s.mentioned(c)
		return true
	}
	if st.before != nil {
		st.before(s)
	}
	text := c.text
	if st.fill != nil {
		text = st.fill(s, text)
	}
	if assignment.MatchString(text) {
		s.assign(c, text)
		return true
	}
	var printed string
	var err error
	ok := func() bool {
		printed, err = s.shell(text)
		return s.problem(c, st, printed, err) == ""
	}
	if reading.MatchString(text) {
		s.poll(ok)
	} else {
		ok()
	}
	wrong := s.problem(c, st, printed, err)
	switch complete := !strings.Contains(strings.Join(c.output, "\n"), "..."); {
	case strings.HasPrefix(wrong, differs) && *update && complete:
		s.printed = append(s.printed, output{command: c, text: printed})
	case wrong != "":
		s.t.Errorf("%s: %s\n$ %s\n%s", c, wrong, text, printed)
		if !strings.HasPrefix(wrong, differs) {
			return reading.MatchString(text)
		}
	}
	if st.after != nil {
		st.after(s)
	}
	return true
}

// showPrinted replaces outputs of the document by the outputs of the commands.
func (s *story) showPrinted() {
	if len(s.printed) == 0 {
		return
	}
	path := filepath.Join(s.root, filepath.FromSlash(s.path))
	content, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	lines := strings.Split(string(content), "\n")
	for _, p := range slices.Backward(s.printed) {
		first, after := p.outputAt-1, p.outputAt-1+len(p.output)
		above := lines[p.line-1]
		indent := above[:len(above)-len(strings.TrimLeft(above, " "))]
		var shown []string
		for line := range strings.Lines(strings.TrimRight(p.text, "\n")) {
			shown = append(shown, strings.TrimRight(indent+line, " \n"))
		}
		lines = slices.Replace(lines, first, after, shown...)
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("%s: replaced %d outputs", s.path, len(s.printed))
}

// assign keeps a variable or a function for later commands.
func (s *story) assign(c command, text string) {
	s.t.Helper()
	if name, _, is := strings.Cut(text, "=$("); is {
		out, err := s.shell(text + "\ndeclare -p " + name)
		if err != nil {
			s.t.Errorf("%s: %s: %v\n%s", c, text, err, out)
			return
		}
		text = out
	}
	s.preamble = append(s.preamble, text)
}

// differs begins the problem of a command that works, but prints another output than the document shows.
const differs = "the output is not the output in the document"

// problem returns the problem of an exit code or an output; empty for none.
func (s *story) problem(c command, st step, printed string, err error) string {
	shown := strings.Join(c.output, "\n")
	denied := c.shown && failure.MatchString(shown)
	code := 0
	if exit := (*exec.ExitError)(nil); err != nil {
		code = -1
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		}
	}
	switch {
	case denied && code == 0:
		return "the command succeeds, but the document shows an error; show its output"
	case !denied && code != st.code:
		return fmt.Sprintf("the command fails (%v); correct it, show its error below it, or add a step to stories_test.go "+
			"that prepares the cluster", err)
	case c.shown && !matches(shown, printed):
		return differs + "; replace\n" + shown + "\n-- by:"
	}
	return ""
}

// shows checks the texts of this name in documents: each line was printed, except for varying parts.
func (s *story) shows(name, printed string) {
	s.t.Helper()
	var lines []string
	for line := range strings.Lines(loosely(printed)) {
		lines = append(lines, line)
	}
	found := false
	for _, x := range texts {
		if x.prints != name {
			continue
		}
		for _, b := range read(s.t, x.document).blocks {
			if !x.is(x.document, b) {
				continue
			}
			found = true
			shown := strings.Join(b.lines, "\n")
			if strings.HasPrefix(shown, "{") {
				shown = strings.ReplaceAll(shown, "\n ", "")
			}
			for line := range strings.Lines(loosely(shown)) {
				if strings.Trim(line, ".\n") != "" && !slices.Contains(lines, line) {
					s.t.Errorf("%s:%d: %q is not printed, but\n%s", x.document, b.line, line, printed)
				}
			}
		}
	}
	if !found {
		s.t.Errorf("stories_test.go has the text %q, which no document shows; remove it", name)
	}
}

// mentioned checks that the command exists.
func (s *story) mentioned(c command) {
	s.t.Helper()
	words := strings.Fields(strings.Split(c.text, " -")[0])
	out, err := s.shell(strings.Join(words, " ") + " --help")
	if err != nil || !strings.Contains(out, strings.Join(words, " ")+" ") {
		s.t.Errorf("%s: there is no command %q", c, c.text)
	}
}

// shell runs commands in a shell, and returns their output.
func (s *story) shell(text string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 3*time.Minute)
	defer cancel()
	var out bytes.Buffer
	script := strings.Join(append(slices.Clone(s.preamble), text), "\n")
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", script)
	kubectl := s.cluster.KubectlCmd(ctx)
	path := "PATH=" + filepath.Dir(kubectl.Path) + ":" + s.plugins + ":" + os.Getenv("PATH")
	cmd.Env = append(append(kubectl.Env, path, "NO_PROXY=127.0.0.1", "LC_ALL=C.UTF-8"), s.env...)
	cmd.Dir = s.dir
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// do runs a command of the test, which must succeed.
func (s *story) do(format string, args ...any) string {
	s.t.Helper()
	text := fmt.Sprintf(format, args...)
	out, err := s.shell(text)
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", text, err, out)
	}
	return strings.TrimSpace(out)
}

// wait repeats a command of the test until it prints want.
func (s *story) wait(want, format string, args ...any) {
	s.t.Helper()
	text := fmt.Sprintf(format, args...)
	var out string
	if !s.poll(func() bool { out, _ = s.shell(text); return strings.TrimSpace(out) == want }) {
		s.t.Fatalf("%s prints %q, not %q", text, out, want)
	}
}

// poll waits until done, and reports whether it was done in time.
func (s *story) poll(done func() bool) bool {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	// Each call of done starts programs, which slow down other tests.
	for pause := 200 * time.Millisecond; !done(); pause = min(2*pause, time.Second) {
		select {
		case <-deadline.C:
			return false
		case <-time.After(pause):
		}
	}
	return true
}
