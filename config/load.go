package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// Error is one fault in a configuration. Load and Validate join as many as they
// find; their text is one line each.
type Error struct {
	// File is the file at fault, empty for a Config that was never one.
	File string
	// Line counts from 1; 0 when the key does not stand in the file.
	Line int
	// Key is the whole key, such as sandbox.pids_limit, empty for a fault of
	// the file as TOML.
	Key string
	// Problem says what was given and what is allowed.
	Problem string
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File + ":")
		if e.Line > 0 {
			fmt.Fprintf(&b, "%d:", e.Line)
		}
		b.WriteByte(' ')
	}
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	return b.String() + e.Problem
}

// Load reads the file at path over the defaults and validates the outcome. An
// empty path means DefaultPath, which may be missing; a file that was named may
// not. Faults in the file are joined *Error values, in the order of its lines.
func Load(path string) (Config, error) {
	named := path != ""
	if !named {
		path = DefaultPath
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return Default(), nil
	}
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	return parse(path, string(data))
}

func parse(file, data string) (Config, error) {
	cfg := Default()
	cfg.File = file

	var tree map[string]toml.Primitive
	md, err := toml.Decode(data, &tree)
	if err != nil {
		fault := &Error{File: file, Problem: err.Error()}
		if syntax, ok := errors.AsType[toml.ParseError](err); ok {
			fault.Line = max(1, syntax.Position.Line) // 0 for some faults at the end of the file
			fault.Problem = strings.Join(strings.Fields(syntax.Message), " ")
		}
		return Config{}, fault
	}

	faults := &faults{file: file, lines: map[string]int{}, bad: map[string]bool{}}
	decode(&md, tree, "", cfg.fields(), faults)
	cfg.validate(faults)
	if err := faults.join(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// decode takes over the values of one table. It goes key by key, and not by
// toml's own struct decoding, because that ends at the first wrong type.
func decode(md *toml.MetaData, table map[string]toml.Primitive, section string, fields []field, faults *faults) {
	for name, primitive := range table {
		key := toml.Key{name}.String()
		if section != "" {
			key = section + "." + key
		}
		given, line := look(md, primitive)
		faults.lines[key] = line

		isSection := section == "" && slices.ContainsFunc(fields, func(f field) bool { return f.section() == key })
		if isSection {
			var inner map[string]toml.Primitive
			if _, isTable := given.(map[string]any); !isTable || md.PrimitiveDecode(primitive, &inner) != nil {
				faults.add(key, "%s is not a section, allowed is [%s] with its keys below", describe(given), key)
				continue
			}
			decode(md, inner, key, fields, faults)
			continue
		}

		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if i < 0 {
			faults.add(key, "%s", unknown(key, given, fields))
			continue
		}
		if f := fields[i]; !f.set(given) {
			faults.add(key, "%s is not %s, allowed is %s", f.shown(describe(given)), f.noun(), f.allowed())
		}
	}
}

// probe catches a value together with the line that toml knows it by: only an
// error carries a position out of the package.
type probe struct{ value any }

func (p *probe) UnmarshalTOML(v any) error { p.value = v; return errors.New("probe") }

func look(md *toml.MetaData, primitive toml.Primitive) (value any, line int) {
	var p probe
	if at, ok := errors.AsType[toml.ParseError](md.PrimitiveDecode(primitive, &p)); ok {
		line = at.Position.Line
	}
	// A table that only dotted keys imply has no line of its own.
	var inner map[string]toml.Primitive
	if line == 0 && md.PrimitiveDecode(primitive, &inner) == nil {
		for _, child := range inner {
			if _, at := look(md, child); line == 0 || at < line {
				line = at
			}
		}
	}
	return p.value, line
}

// field is one key of a Config.
type field struct {
	key   string
	value reflect.Value
	tag   reflect.StructTag
}

func (f field) section() string {
	if section, _, found := strings.Cut(f.key, "."); found {
		return section
	}
	return ""
}

// shown keeps a value that may be a token out of an error.
func (f field) shown(text string) string {
	if f.tag.Get("secret") != "" {
		return "the value (not shown, it may be a secret)"
	}
	return text
}

// fields lists the keys of c in the order of the struct. Their values are
// settable.
func (c *Config) fields() []field { return fieldsOf(reflect.ValueOf(c).Elem(), "") }

func fieldsOf(v reflect.Value, prefix string) []field {
	var all []field
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		name := sf.Tag.Get("toml")
		switch {
		case name == "": // not a key
		case sf.Type.Kind() == reflect.Struct:
			all = append(all, fieldsOf(v.Field(i), name+".")...)
		default:
			all = append(all, field{prefix + name, v.Field(i), sf.Tag})
		}
	}
	return all
}

// faults collects what is wrong with one file or one Config.
type faults struct {
	file  string
	lines map[string]int
	bad   map[string]bool
	list  []*Error
}

func (fs *faults) add(key, format string, args ...any) {
	fs.bad[key] = true
	fs.list = append(fs.list, &Error{fs.file, fs.lines[key], key, fmt.Sprintf(format, args...)})
}

// across adds a fault between keys, under the first of them and at the line of
// the first that stands in the file. It is silent when one of them is already
// known to be wrong.
func (fs *faults) across(keys []string, format string, args ...any) {
	if slices.ContainsFunc(keys, func(key string) bool { return fs.bad[key] }) {
		return
	}
	fs.add(keys[0], format, args...)
	if i := slices.IndexFunc(keys, func(key string) bool { return fs.lines[key] > 0 }); i >= 0 {
		fs.list[len(fs.list)-1].Line = fs.lines[keys[i]]
	}
}

func (fs *faults) join() error {
	slices.SortFunc(fs.list, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return strings.Compare(a.Key, b.Key)
	})
	errs := make([]error, len(fs.list))
	for i, e := range fs.list {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// unknown says what a person most likely meant by a key that does not exist.
func unknown(key string, given any, fields []field) string {
	section, name, found := strings.Cut(key, ".")
	if !found {
		section, name = "", key
	}

	if _, isTable := given.(map[string]any); isTable && section == "" {
		var sections []string
		for _, f := range fields {
			if s := f.section(); s != "" && !slices.Contains(sections, s) {
				sections = append(sections, s)
			}
		}
		for _, s := range sections {
			if near(name, s) {
				return fmt.Sprintf("unknown section, did you mean [%s]?", s)
			}
		}
		return "unknown section, allowed are [" + strings.Join(sections, "], [") + "]"
	}

	var siblings []string
	best, bestDistance := "", 0
	for _, f := range fields {
		_, last, found := strings.Cut(f.key, ".")
		if !found {
			last = f.key
		}
		if f.section() == section {
			siblings = append(siblings, last)
		}
		if last == name {
			if f.section() == "" {
				return fmt.Sprintf("unknown key in [%s]; %s belongs above the first section of the file", section, name)
			}
			return fmt.Sprintf("unknown key, %s belongs in [%s]", name, f.section())
		}
		if d := distance(name, last); near(name, last) && (best == "" || d < bestDistance) {
			best, bestDistance = f.key, d
		}
	}
	if best != "" {
		return "unknown key, did you mean " + best + "?"
	}
	return "unknown key, allowed are " + strings.Join(siblings, ", ")
}

// near reports whether a is so close to b that it can be a slip: a third of it
// differs at most.
func near(a, b string) bool { return distance(a, b) <= max(1, min(len(a), len(b))/3) }

// distance is Levenshtein's: the least number of bytes to insert, delete or
// replace to make b from a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
