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
	"go/ast"
	goparser "go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/options"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

// TestLinks checks that every link within the repository leads to a file and a heading.
func TestLinks(t *testing.T) {
	root := repository(t)
	for _, path := range documents {
		d := read(t, path)
		for _, link := range d.links {
			target, anchor, _ := strings.Cut(link.text, "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.ToSlash(filepath.Join(filepath.Dir(path), target))
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(file))); err != nil {
				t.Errorf("%s:%d: link to %s: there is no %s; name a file of the repository, relative to %s",
					path, link.line, link.text, file, filepath.Dir(path))
				continue
			}
			if anchor != "" && !read(t, file).anchors()[anchor] {
				t.Errorf("%s:%d: link to %s: %s has no heading #%s", path, link.line, link.text, file, anchor)
			}
		}
		for _, line := range d.text() {
			if _, file, is := strings.Cut(line.text, "raw.githubusercontent.com/traas-stack/altershield-operator/"); is {
				_, file, _ = strings.Cut(strings.Fields(file)[0], "/")
				if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(file))); err != nil {
					t.Errorf("%s:%d: the repository has no file %s to download", path, line.line, file)
				}
			}
		}
	}
}

// translated is README.md in Chinese.
const translated = "README.zh-CN.md"

// TestTranslation checks that README.zh-CN.md has the same blocks and code spans as README.md.
func TestTranslation(t *testing.T) {
	english, chinese := read(t, "README.md").blocks, read(t, translated).blocks
	if len(english) != len(chinese) {
		t.Fatalf("README.md has %d blocks, %s has %d", len(english), translated, len(chinese))
	}
	for i, b := range chinese {
		if b.language != "mermaid" && !slices.Equal(b.lines, english[i].lines) {
			t.Errorf("%s:%d: the block differs from README.md:%d", translated, b.line, english[i].line)
		}
	}
	names := func(path string) map[string]bool {
		all := map[string]bool{}
		for _, s := range read(t, path).spans {
			all[s.text] = true
		}
		return all
	}
	if diff := cmp.Diff(names("README.md"), names(translated)); diff != "" {
		t.Errorf("code spans in README.md only (-), and in %s only (+):\n%s", translated, diff)
	}
}

// TestBlocks checks that the parser misses no command: a block of commands begins with a command, and a code span ends in its first line.
func TestBlocks(t *testing.T) {
	for _, path := range documents {
		d := read(t, path)
		for _, s := range d.loose {
			t.Errorf("%s:%d: code that does not end in its first line: %s", path, s.line, s.text)
		}
		for _, b := range d.blocks {
			if b.language == "go" {
				isQuoted(t, path, b)
				continue
			}
			if len(b.commands(path)) > 0 || slices.Contains([]string{"mermaid", "yaml", "dockerfile"}, b.language) {
				continue
			}
			for i, line := range b.lines {
				if strings.HasPrefix(line, "$ ") || programs.MatchString(line) {
					t.Errorf("%s:%d: the block of this command does not begin with a command; begin it with a command, "+
						"with \"$ \" before it if the block shows outputs", path, b.line+i)
				}
			}
			if !slices.ContainsFunc(texts, func(x shownText) bool { return x.is(path, b) }) {
				t.Errorf("%s:%d: the block has no commands, and texts in stories_test.go do not have it; show an output below its command",
					path, b.line)
			}
		}
	}
}

// isQuoted checks that the file in the first line of Go code has this code, with any indentation.
func isQuoted(t *testing.T, path string, b block) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(repository(t), strings.TrimPrefix(b.lines[0], "// ")))
	if err != nil {
		t.Errorf("%s:%d: begin Go code with the path of its file, as in \"// main.go\": %v", path, b.line, err)
		return
	}
	flat := func(code string) string { return strings.Join(strings.Fields(code), " ") }
	if !strings.Contains(flat(string(source)), flat(strings.Join(b.lines[1:], "\n"))) {
		t.Errorf("%s:%d: %s does not have this code", path, b.line, b.lines[0])
	}
}

// made matches paths that are not in the repository, because commands of the documentation create them.
var made = regexp.MustCompile(`^(bin|certs)/.`)

var (
	repositoryPath = regexp.MustCompile(`(?:^|[\s=@('"])` +
		`((?:\.ci|apis|bin|certs|config|controllers|docs|hack|internal|routers|runnable|test|webhooks)/[\w./*-]*)`)
	upperCase = regexp.MustCompile(`[A-Z]{3,}|\.\.\.`)
)

// TestPaths checks that every path in documents exists in the repository.
func TestPaths(t *testing.T) {
	root := repository(t)
	exists := func(path string) bool {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(path)))
		return err == nil && len(found) > 0
	}
	for _, path := range documents {
		for _, s := range code(t, path) {
			for _, m := range repositoryPath.FindAllStringSubmatch(s.text, -1) {
				// NAME in opsconfiginfo-NAME.yaml stands for any name, ... in apis/.../x.go for one or two directories.
				name := strings.TrimRight(upperCase.ReplaceAllString(m[1], "*"), ".")
				if !made.MatchString(name) && !exists(name) && !exists(strings.ReplaceAll(name, "/*/", "/*/*/")) {
					t.Errorf("%s:%d: %s is not in the repository", path, s.line, m[1])
				}
			}
		}
	}
}

// code returns the code spans and the lines of blocks of a document.
func code(t *testing.T, path string) []span {
	t.Helper()
	d := read(t, path)
	all := slices.Clone(d.spans)
	for _, b := range d.blocks {
		if b.language == "mermaid" {
			continue
		}
		for i, line := range b.lines {
			all = append(all, span{b.line + i, line})
		}
	}
	return all
}

var (
	makeTarget   = regexp.MustCompile(`(?m)^([a-zA-Z][\w-]*):`)
	makeVariable = regexp.MustCompile(`(?m)^([A-Z][A-Z0-9_]*) *[?:]?=`)
)

// TestMakeTargets checks that the Makefile has every target and variable of make commands.
func TestMakeTargets(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(repository(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, pattern := range []*regexp.Regexp{makeTarget, makeVariable} {
		for _, m := range pattern.FindAllStringSubmatch(string(data), -1) {
			known[m[1]] = true
		}
	}
	seen := 0
	for _, path := range documents {
		for _, s := range code(t, path) {
			words, is := strings.CutPrefix(comment.ReplaceAllString(strings.TrimPrefix(s.text, "$ "), ""), "make ")
			if !is {
				continue
			}
			for _, word := range strings.Fields(words) {
				name, _, variable := strings.Cut(word, "=")
				if seen++; !known[name] {
					t.Errorf("%s:%d: make %s: the Makefile has no target or variable %s", path, s.line, words, name)
				}
				if variable {
					break // its value may have spaces
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no document names a target")
	}
}

var flagName = regexp.MustCompile(`(^|[\s'"=(,])--([a-z][a-z-]*(?:[a-z]|\*))(?:[^.\w-]|$)`)

// TestFlags checks that programs have the flags in documents. A flag without a program is a flag of the manager, or of the simulator
// where the simulator is described.
func TestFlags(t *testing.T) {
	manager := func(name string) bool {
		_, err := options.Parse([]string{"--" + name + "=x"})
		return err == nil || !strings.Contains(err.Error(), "flag provided")
	}
	simulator := source(t, "hack/simulator/main.go", `flags\.\w+\((?:&[\w.]+, )?"([a-z-]+)"`)
	demo := source(t, "hack/demo/main.go", `flag\.\w+\("([a-z-]+)"`)
	in := func(names []string) func(string) bool {
		return func(name string) bool { return slices.Contains(names, name) }
	}
	mentioned := map[string]bool{}
	for _, path := range documents {
		for _, s := range code(t, path) {
			whose, is := "manager", manager
			switch text := strings.TrimPrefix(s.text, "$ "); {
			case strings.HasPrefix(text, "make simulator"), strings.HasPrefix(text, "go run ./hack/simulator"),
				strings.HasPrefix(text, "--fail-"):
				whose, is = "simulator", in(append(simulator, "help"))
			case strings.HasPrefix(text, "make demo"):
				whose, is = "demo", in(demo)
			case strings.HasPrefix(text, "ARGS=") || strings.HasPrefix(text, "make "):
			case strings.HasPrefix(text, "'--fail"),
				path == "docs/tasks/connect-altershield-server.md" && in(simulator)(strings.Trim(strings.Split(text, "=")[0], "-")):
				whose, is = "simulator", in(simulator)
			case strings.HasPrefix(text, "-") && slices.Contains(aboutPlugin, path):
				whose, is = "plugin", in(pluginFlags(newPlugin()))
			case strings.HasPrefix(text, "-") || strings.HasPrefix(text, "altershield-operator: ") || strings.HasPrefix(text, "/manager "):
			default:
				continue // flags of kubectl, curl, go: the commands are run
			}
			for _, m := range flagName.FindAllStringSubmatch(s.text, -1) {
				name := m[2]
				if prefix, several := strings.CutSuffix(name, "*"); several {
					if !slices.ContainsFunc(managerFlags(t), func(f string) bool { return strings.HasPrefix(f, prefix) }) {
						t.Errorf("%s:%d: the manager has no flag --%s", path, s.line, name)
					}
					continue
				}
				mentioned[name] = true
				if !is(name) {
					t.Errorf("%s:%d: the %s has no flag --%s", path, s.line, whose, name)
				}
			}
		}
	}
	for _, name := range managerFlags(t) {
		if !mentioned[name] {
			t.Errorf("internal/options: no document has --%s; add it to the table of docs/reference/flags.md", name)
		}
	}
}

// pluginFlags returns the flags of a command of the plugin and of its subcommands.
func pluginFlags(c *cobra.Command) (names []string) {
	for _, flags := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	}
	for _, sub := range c.Commands() {
		names = append(names, pluginFlags(sub)...)
	}
	return names
}

func managerFlags(t *testing.T) []string {
	return source(t, "internal/options/options.go", `fs\.\w+\((?:&o\.\w+, )?"([a-z-]+)"`)
}

// source returns the first group of each match in a file.
func source(t *testing.T, path, pattern string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository(t), filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(data), -1) {
		all = append(all, m[1])
	}
	if len(all) == 0 {
		t.Fatalf("%s has nothing like %s", path, pattern)
	}
	return all
}

// program has the strings and names in the code of this repository.
type program struct {
	// literals are the strings outside tests; text has one per line.
	literals map[string]bool
	text     string
	// names are all identifiers, in tests too.
	names map[string]bool
	// constants are the string constants by name.
	constants map[string]string
	// events are the reasons of events.
	events map[string]bool
}

func programOf(t *testing.T) program {
	t.Helper()
	p := program{map[string]bool{}, "", map[string]bool{}, map[string]string{}, map[string]bool{}}
	var files []*ast.File
	root := repository(t)
	for _, dir := range []string{".", "apis", "controllers", "hack", "internal", "routers", "runnable", "test", "webhooks"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && dir == "." && path != root || entry.IsDir() && path == filepath.Join(root, "test", "docs") {
				return filepath.SkipDir
			}
			if !strings.HasSuffix(path, ".go") {
				return nil
			}
			file, err := goparser.ParseFile(token.NewFileSet(), path, nil, goparser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if id, is := n.(*ast.Ident); is {
					p.names[id.Name] = true
				}
				return true
			})
			if !strings.HasSuffix(path, "_test.go") {
				files = append(files, file)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if s, is := literal(n); is {
					p.literals[s] = true
					text.WriteString(s + "\n")
				}
			case *ast.ValueSpec:
				for i, value := range n.Values {
					if s, is := literal(value); is && i < len(n.Names) {
						p.constants[n.Names[i].Name] = s
					}
				}
			}
			return true
		})
	}
	p.text = text.String()
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				p.eventsIn(n.Args)
			case *ast.CompositeLit:
				p.eventsIn(n.Elts)
			}
			return true
		})
	}
	return p
}

// eventsIn adds the reasons of events in a list: a reason follows an event type.
func (p program) eventsIn(list []ast.Expr) {
	for i := range list[:max(0, len(list)-1)] {
		if selector, is := valueOf(list[i]).(*ast.SelectorExpr); !is || !strings.HasPrefix(selector.Sel.Name, "EventType") {
			continue
		}
		switch reason := valueOf(list[i+1]).(type) {
		case *ast.SelectorExpr:
			p.events[p.constants[reason.Sel.Name]] = true
		case *ast.Ident:
			p.events[p.constants[reason.Name]] = true
		default:
			if s, is := literal(reason); is {
				p.events[s] = true
			}
		}
	}
	delete(p.events, "")
}

func valueOf(e ast.Expr) ast.Expr {
	if pair, is := e.(*ast.KeyValueExpr); is {
		return pair.Value
	}
	return e
}

func literal(e ast.Expr) (string, bool) {
	basic, is := e.(*ast.BasicLit)
	if !is || basic.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(basic.Value)
	return s, err == nil
}

var (
	camelCase = regexp.MustCompile(`^[A-Z][a-z]+([A-Z][a-z]*)+$`)
	metric    = regexp.MustCompile(`\baltershield_[a-z_]+[a-z]\b`)
	key       = regexp.MustCompile(`(?:altershield\.defense\.antgroup\.com/|…/)([a-z-]+[a-z])`)
)

// foreign are names of Kubernetes and of the tools around it.
var foreign = []string{
	"ContainerCreating", "RollingUpdate", "ReplicaSet", "RolloutStuck", "ConfigMap", "OwnerReferencesPermissionEnforcement", "PreDelete",
}

// settingKeys are the annotations of a workload that change a setting.
var settingKeys = []string{
	"blocking", "branch", "halting", "holding", "observe", "rollback", "selfhealing", "silence", "timeouts",
}

// manifestKeys are labels that only manifests have.
var manifestKeys = []string{"aggregate-to-manager"}

// TestNames checks that the code has every state, reason, condition, event, kind, function, metric and key in documents.
func TestNames(t *testing.T) {
	p := programOf(t)
	for _, path := range documents {
		for _, s := range read(t, path).spans {
			known := p.literals[s.text] || p.names[s.text] || p.names["PodReason"+s.text] ||
				slices.Contains(foreign, s.text) || strings.HasPrefix(s.text, "AlterShield")
			if camelCase.MatchString(s.text) && !known {
				t.Errorf("%s:%d: nothing in the code is called %s", path, s.line, s.text)
			}
		}
		for _, s := range read(t, path).text() {
			for _, name := range metric.FindAllString(s.text, -1) {
				if !p.literals[name] && !p.literals[strings.TrimPrefix(name, "altershield_")] {
					t.Errorf("%s:%d: there is no metric %s", path, s.line, name)
				}
			}
			for _, m := range key.FindAllStringSubmatch(s.text, -1) {
				if !p.literals["altershield.defense.antgroup.com/"+m[1]] && !slices.Contains(settingKeys, m[1]) &&
					!slices.Contains(manifestKeys, m[1]) {
					t.Errorf("%s:%d: there is no label or annotation altershield.defense.antgroup.com/%s", path, s.line, m[1])
				}
			}
		}
	}
}

// TestComplete checks that docs/reference/states.md explains every condition, reason, event and key on workloads.
func TestComplete(t *testing.T) {
	p := programOf(t)
	explained := func(paths ...string) map[string]bool {
		words := map[string]bool{}
		for _, path := range paths {
			for _, s := range read(t, path).spans {
				words[s.text] = true
			}
		}
		return words
	}
	states := explained("docs/reference/states.md")
	for name, value := range p.constants {
		switch {
		case strings.HasPrefix(name, "Condition") || strings.HasPrefix(name, "Reason"):
			if camelOrWord.MatchString(value) && !states[value] {
				t.Errorf("docs/reference/states.md does not explain %s (%s)", value, name)
			}
		case strings.HasSuffix(name, "Label") || strings.HasSuffix(name, "Annotation"):
			short, own := strings.CutPrefix(value, "altershield.defense.antgroup.com/")
			if own && !states[short] && !explained("docs/concepts/release.md")[value] {
				t.Errorf("docs/reference/states.md does not explain %s on workloads", short)
			}
		}
	}
	events := explained("docs/reference/states.md")
	for reason := range p.events {
		if !events[reason] {
			t.Errorf("docs/reference/states.md does not explain the event %s", reason)
		}
	}
	if len(p.events) < 15 {
		t.Errorf("found only the events %v", p.events)
	}
}

var (
	imageName = regexp.MustCompile(`\b(?:sleep=|image: |IMG=|")((?:[a-z0-9.-]+/)*[a-z-]*(?:busybox|altershield-operator)(?::[\w.-]+)?)\b`)
	// published matches images that can be pulled, and images of examples that users push to a registry of their own.
	published = regexp.MustCompile(`^(busybox(:1\.3[0-7])?|registry\.example/.*|ghcr\.io/traas-stack/altershield-operator:vX\.Y\.Z)$`)
)

// TestImages checks that every image in documents and manifests can be pulled, or is the image of the release.
func TestImages(t *testing.T) {
	root := repository(t)
	const kustomization = "config/manager/kustomization.yaml"
	released := source(t, kustomization, `newName: (\S+)`)[0] + ":" + source(t, kustomization, `newTag: (v\d+\.\d+\.\d+)\n`)[0]
	texts := map[string]string{}
	for _, path := range documents {
		texts[path] = strings.Join(read(t, path).lines, "\n")
	}
	for _, pattern := range []string{"quick-start.yaml", "config/samples/*.yaml", "config/samples/*/*.yaml", "config/manager/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil || len(files) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts[file] = string(data)
		}
	}
	seen := 0
	for path, text := range texts {
		for _, m := range imageName.FindAllStringSubmatch(text, -1) {
			if seen++; !published.MatchString(m[1]) && m[1] != released {
				t.Errorf("%s: %s cannot be pulled; name a published tag, or add the image to published", path, m[1])
			}
		}
	}
	if seen < 5 {
		t.Errorf("found only %d images", seen)
	}
}

// workloadFields are the fields of workloads that documents may name.
var workloadFields = []string{
	"spec.paused", "spec.updateStrategy.type", "spec.updateStrategy.rollingUpdate.partition", "spec.minReadySeconds",
	"spec.progressDeadlineSeconds", "spec.template",
}

// TestObjectKeys checks that docs/reference/objects.md has exactly the keys that the operator writes or reads.
func TestObjectKeys(t *testing.T) {
	d := read(t, "docs/reference/objects.md")
	named := map[string]bool{}
	for _, s := range d.spans {
		named[s.text] = true
	}
	known := map[string]bool{"metadata.managedFields": true, corev1.LastAppliedConfigAnnotation: true}
	for _, name := range workloadFields {
		known[name] = true
	}
	keys := 0
	for name, value := range programOf(t).constants {
		if !strings.HasSuffix(name, "Label") && !strings.HasSuffix(name, "Annotation") {
			continue
		}
		short, own := strings.CutPrefix(value, v1alpha1.SettingAnnotationPrefix)
		if !own && !strings.HasPrefix(value, v1alpha1.EnrolledLabel) &&
			value != v1alpha1.DeploymentNameLabel && value != v1alpha1.ChangeCauseAnnotation {
			continue // a key of others
		}
		keys++
		known[short], known[value] = true, true
		if !named[short] && !named[value] {
			t.Errorf("docs/reference/objects.md does not have %s (%s); add the object, the time of the write, and the removal", value, name)
		}
	}
	if keys < 25 {
		t.Errorf("found only %d keys", keys)
	}
	for _, r := range d.rows {
		if r.heading != "On a workload" && r.heading != "On pods" {
			continue
		}
		for _, s := range r.cells[0] {
			if !known[s.text] {
				t.Errorf("docs/reference/objects.md:%d: nothing writes %s", s.line, s.text)
			}
		}
	}
}

// TestObjectRights checks that docs/reference/objects.md has exactly the rights to write of the manager's roles. test/node compares the
// roles with the audit log of a real API server.
func TestObjectRights(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(repository(t), "config", "rbac", "role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string][]string{}
	for document := range strings.SplitSeq(strings.TrimPrefix(string(data), "---\n"), "\n---\n") {
		var role rbacv1.ClusterRole // a Role has the same fields
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		heading := map[string]string{"ClusterRole": "Rights in the whole cluster", "Role": "Rights in its namespace"}[role.Kind]
		rights := map[string][]string{}
		for _, rule := range role.Rules {
			for _, verb := range rule.Verbs {
				for _, resource := range rule.Resources {
					if !slices.Contains([]string{"get", "list", "watch"}, verb) && !slices.Contains(rights[resource], verb) {
						rights[resource] = append(rights[resource], verb)
						slices.Sort(rights[resource])
					}
				}
			}
		}
		want[heading] = rights
	}
	got := map[string]map[string][]string{}
	for _, r := range read(t, "docs/reference/objects.md").rows {
		if want[r.heading] == nil {
			continue
		}
		if got[r.heading] == nil {
			got[r.heading] = map[string][]string{}
		}
		for _, resource := range r.cells[0] {
			var verbs []string
			for _, verb := range r.cells[1] {
				verbs = append(verbs, verb.text)
			}
			slices.Sort(verbs)
			got[r.heading][resource.text] = verbs
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights to write in config/rbac/role.yaml (-) and in the tables of docs/reference/objects.md (+):\n%s", diff)
	}
}

var camelOrWord = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)

// TestLogLines checks that the code has the log lines in docs/reference/altershield-server.md.
func TestLogLines(t *testing.T) {
	p := programOf(t)
	d := read(t, "docs/reference/altershield-server.md")
	rows := 0
	for _, r := range d.rows {
		var named []span
		switch {
		case r.heading == "By log line":
			named = r.cells[0]
		case r.heading == "By condition" && len(r.cells) == 5:
			named = r.cells[3]
		}
		for _, s := range named {
			if !strings.Contains(s.text, " ") {
				continue // the value of a field
			}
			if rows++; !p.literals[s.text] {
				t.Errorf("%s:%d: the manager has no log line %q", d.path, s.line, s.text)
			}
		}
	}
	if rows == 0 {
		t.Error("found no log lines")
	}
}

// TestWalkthrough checks that the documents have the commands of the walkthrough, and show its denial.
func TestWalkthrough(t *testing.T) {
	var typed, shown []string
	for _, path := range []string{tutorial, "docs/concepts/release.md", "docs/concepts/verification.md", "docs/concepts/block.md"} {
		for _, c := range read(t, path).commands() {
			typed = append(typed, normal(c.text))
			shown = append(shown, c.output...)
		}
	}
	for _, act := range append(slices.Clone(walkthrough.Release.Acts[:2]), walkthrough.Verdict) {
		want := act.Typed(walkthrough.Namespace, "default", walkthrough.FailedPod, "sleep-76899dd8f8-gcr9j")
		if !slices.Contains(typed, normal(want)) {
			t.Errorf("no document has the command of the walkthrough: %s", want)
		}
	}
	if !slices.ContainsFunc(shown, func(line string) bool { return strings.Contains(line, walkthrough.Denial) }) {
		t.Errorf("no document shows the denial of the walkthrough: %s", walkthrough.Denial)
	}
}

var field = regexp.MustCompile(`^(?:spec|status)(?:\.[a-zA-Z]+)+$`)

// TestFields checks that our kinds or workloads have every field in documents.
func TestFields(t *testing.T) {
	known := map[string]bool{}
	for _, name := range workloadFields {
		known[name] = true
	}
	for _, crd := range crds(t) {
		walk(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, "", func(path string, _ *apiextensionsv1.JSONSchemaProps) { known[path] = true })
	}
	for _, path := range documents {
		for _, s := range read(t, path).spans {
			if field.MatchString(s.text) && !known[s.text] {
				t.Errorf("%s:%d: no kind has a field %s", path, s.line, s.text)
			}
		}
	}
}

// TestDescriptions checks that every field of our kinds has a description, which kubectl explain prints.
func TestDescriptions(t *testing.T) {
	for _, crd := range crds(t) {
		kind := crd.Spec.Names.Kind
		for _, v := range crd.Spec.Versions {
			if v.Schema.OpenAPIV3Schema.Description == "" {
				t.Errorf("%s has no description", kind)
			}
			fields := 0
			walk(v.Schema.OpenAPIV3Schema, "", func(path string, s *apiextensionsv1.JSONSchemaProps) {
				fields++
				if path != "metadata" && strings.TrimSpace(s.Description) == "" {
					t.Errorf("%s: %s has no description; write a comment above it in apis/, then make generate manifests build-installer", kind, path)
				}
			})
			if fields < 10 {
				t.Errorf("%s has only %d fields", kind, fields)
			}
			for _, c := range v.AdditionalPrinterColumns {
				if c.Name != "AGE" && c.Description == "" {
					t.Errorf("%s: column %s has no description", kind, c.Name)
				}
			}
		}
	}
}

func crds(t *testing.T) []apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(repository(t), "config", "crd", "bases", "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	all := make([]apiextensionsv1.CustomResourceDefinition, len(paths))
	for i, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(data, &all[i]); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// walk calls visit for each field of a schema, with its path.
func walk(s *apiextensionsv1.JSONSchemaProps, path string, visit func(path string, s *apiextensionsv1.JSONSchemaProps)) {
	for name := range s.Properties {
		child := s.Properties[name]
		below := strings.TrimPrefix(path+"."+name, ".")
		visit(below, &child)
		walk(&child, below, visit)
	}
	if s.Items != nil && s.Items.Schema != nil {
		walk(s.Items.Schema, path, visit)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		walk(s.AdditionalProperties.Schema, path, visit)
	}
}
