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

// update has what commands print written into the documents:
//
//	go test ./test/docs -run TestCommands/docs/getting-started/first-block.md -update
//
// Outputs that leave something out ("...") stay as they are.
var update = flag.Bool("update", false, "write what the commands print into the documents")

// patience bounds the wait for any one condition.
const patience = 30 * time.Second

// step is what has to be known of a command beside what the document says.
// Commands without one are run as they are.
type step struct {
	// command as the document has it; blanks and the ends of names of pods may
	// differ.
	command string
	// skip says why it is not run.
	skip string
	// fill puts something real in the place of what stands for it in the document.
	fill func(s *story, command string) string
	// before makes what the text presupposes; after waits for what it promises.
	before, after func(s *story)
	// code is the exit code, where it is not that of success: grep finds nothing.
	code int
}

// story is a document whose commands are run in its order, by a shell, as people
// type them, on a real control plane with a running manager.
type story struct {
	*stage
	t        *testing.T
	path     string
	preamble []string
	env      []string
	// printed are outputs that differ from what the document shows, with update.
	printed []output
}

// output is what a command of a document printed.
type output struct {
	command
	text string
}

// stage is what the stories of a group of documents are told on.
type stage struct {
	cluster *controlplane.ControlPlane
	manager *controlplane.Manager
	server  *simulator.Simulator
	root    string
	// dir is a checkout of the repository in which files may be made.
	dir string
	// plugins is where the plugin of kubectl is.
	plugins string
	// metrics is where the manager serves them.
	metrics string
}

var (
	// notRun are programs whose commands are checked by TestMakeTargets, or need
	// more than this machine. test/chart runs those of Helm.
	notRun = regexp.MustCompile(`^(make|git|cd|go|helm|sha256sum|gh|cosign|skopeo|ctr) `)
	// assignment begins what the commands after it need.
	assignment = regexp.MustCompile(`^[A-Za-z_]+=\$\([^;]*$|^[a-z]+\(\) *\{`)
	// mention is the name of a command in a sentence.
	mention = regexp.MustCompile(`^kubectl( rollout)? [a-z]+( -k| --type=json)?$`)
	// reading has no effect, so what it prints is waited for.
	reading = regexp.MustCompile(`\bkubectl( -n \S+)? (get|describe|explain|rollout history|altershield (status|explain|history))( |$)`)
	failure = regexp.MustCompile(`(?m)^([Ee]rror|The \w+ "[^"]+" is invalid)`)
	blanks  = regexp.MustCompile(`\s+`)
)

// TestCommands runs the commands in the documents, and compares what they print
// with what the documents show. Each group has a stage of its own, beside the others.
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
				if path == translated || slices.Contains(ofPlaces, path) {
					continue // the commands of the one are those of README.md
				}
				t.Run(path, func(t *testing.T) {
					if on() == nil {
						t.Fatal("there is no stage to tell it on")
					}
					tell(t, on(), path)
				})
			}
		})
	}
}

// tell runs the commands of one document.
func tell(t *testing.T, on *stage, path string) {
	s := &story{stage: on, t: t, path: path}
	told, known := stories[path]
	if known && told.begin != nil {
		told.begin(s)
	}
	used := map[string]int{}
	for _, c := range read(t, path).commands() {
		name := normal(c.text)
		of := slices.DeleteFunc(slices.Clone(told.steps), func(st step) bool { return normal(st.command) != name })
		var st step
		if len(of) > 0 {
			st = of[min(used[name], len(of)-1)]
		}
		used[name]++
		if !s.run(c, st) {
			t.Errorf("%s: the story ends here: what comes after presupposes this", c)
			break
		}
	}
	if !t.Failed() {
		for _, st := range told.steps {
			if used[normal(st.command)]--; used[normal(st.command)] < 0 {
				t.Errorf("%s: the command %q, which stories_test.go has a step for, does not occur any more; remove the step", path, st.command)
			}
		}
	}
	if known && told.end != nil {
		told.end(s)
	}
	s.showPrinted()
}

// normal is a command without what may be different in the document.
func normal(command string) string {
	return strings.TrimSpace(blanks.ReplaceAllString(podName.ReplaceAllString(command, "$1-POD"), " "))
}

// built is what stages need: the checkout, the programs of a control plane, and the
// directory of the plugin.
type built struct{ root, programs, plugins string }

// build makes them; empty where that fails.
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

// startStage starts what stories are told on; nil where that fails.
func startStage(t *testing.T, b built) *stage {
	if b.root == "" {
		return nil
	}
	s := &stage{root: b.root, plugins: b.plugins, dir: t.TempDir()}
	// Directories are linked, so that what is written beside them stays here.
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

// run runs a command of the document, and says whether the story can go on.
func (s *story) run(c command, st step) bool {
	s.t.Helper()
	switch text := c.text; {
	case st.skip != "":
		return true
	case notRun.MatchString(text):
		if c.shown {
			s.t.Errorf("%s: what is shown below %q cannot be checked", c, text)
		}
		return true
	case c.inProse && strings.HasPrefix(text, pluginCommand+" "):
		return true // TestPluginCommands looks at it
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
		return s.verdict(c, st, printed, err) == ""
	}
	if reading.MatchString(text) {
		s.poll(ok)
	} else {
		ok()
	}
	if wrong := s.verdict(c, st, printed, err); strings.HasPrefix(wrong, differs) && *update && !strings.Contains(strings.Join(c.output, "\n"), "...") {
		s.printed = append(s.printed, output{command: c, text: printed})
	} else if wrong != "" {
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

// showPrinted puts what was printed in the place of what the document shows.
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
	s.t.Logf("%s shows what is printed now: %d outputs", s.path, len(s.printed))
}

// assign keeps a variable or a function for the commands that follow.
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

// differs is what is wrong when a command does what it should, and the document
// shows something else.
const differs = "this is what is printed"

// verdict says what is wrong with what a command printed.
func (s *story) verdict(c command, st step, printed string, err error) string {
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
		return "the command succeeds, and the document shows that it does not; show what it prints"
	case !denied && code != st.code:
		return fmt.Sprintf("the command fails (%v); mend it, show its error below it, or add a step to stories_test.go that makes what it presupposes", err)
	case c.shown && !matches(shown, printed):
		return differs + "; put it in place of what the document shows, which is\n" + shown + "\n-- printed:"
	}
	return ""
}

// shows checks the texts that documents show of what has been printed, but for
// what varies: each line is one of them.
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
					s.t.Errorf("%s:%d: nothing prints %q any more; this is printed:\n%s", x.document, b.line, line, printed)
				}
			}
		}
	}
	if !found {
		s.t.Errorf("stories_test.go knows of the text %q, which no document shows; remove it", name)
	}
}

// mentioned checks that there is such a command.
func (s *story) mentioned(c command) {
	s.t.Helper()
	words := strings.Fields(strings.Split(c.text, " -")[0])
	out, err := s.shell(strings.Join(words, " ") + " --help")
	if err != nil || !strings.Contains(out, strings.Join(words, " ")+" ") {
		s.t.Errorf("%s: there is no command %q", c, c.text)
	}
}

// shell runs commands as people do, and returns what they print.
func (s *story) shell(text string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 3*time.Minute)
	defer cancel()
	var out bytes.Buffer
	script := strings.Join(append(slices.Clone(s.preamble), text), "\n")
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", script)
	kubectl := s.cluster.KubectlCmd(ctx)
	cmd.Env = append(append(kubectl.Env, "PATH="+filepath.Dir(kubectl.Path)+":"+s.plugins+":"+os.Getenv("PATH"), "NO_PROXY=127.0.0.1", "LC_ALL=C.UTF-8"), s.env...)
	cmd.Dir = s.dir
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// do runs a command of the test's own, which must succeed.
func (s *story) do(format string, args ...any) string {
	s.t.Helper()
	text := fmt.Sprintf(format, args...)
	out, err := s.shell(text)
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", text, err, out)
	}
	return strings.TrimSpace(out)
}

// wait until a command of the test's own prints something.
func (s *story) wait(want, format string, args ...any) {
	s.t.Helper()
	text := fmt.Sprintf(format, args...)
	var out string
	if !s.poll(func() bool { out, _ = s.shell(text); return strings.TrimSpace(out) == want }) {
		s.t.Fatalf("%s prints %q, not %q", text, out, want)
	}
}

// poll until done, and say whether it was.
func (s *story) poll(done func() bool) bool {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	// Each look starts programs, which takes what others wait for.
	for pause := 200 * time.Millisecond; !done(); pause = min(2*pause, time.Second) {
		select {
		case <-deadline.C:
			return false
		case <-time.After(pause):
		}
	}
	return true
}
