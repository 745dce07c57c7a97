package config

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Seconds is a time in whole seconds, as the file has it.
type Seconds int

// Duration is s as a time.Duration.
func (s Seconds) Duration() time.Duration { return time.Duration(s) * time.Second }

// CPUs is processor time per wall time, 1 = one processor. The file has it as a
// string or as a number.
type CPUs float64

func (c CPUs) String() string { return strconv.FormatFloat(float64(c), 'f', -1, 64) }

// Size is a number of bytes. The file has it as a string or as a number.
type Size int64

// sizeUnits are 1024-based, as in Docker and in the kernel's mount options.
var sizeUnits = []struct {
	suffix string
	bytes  int64
}{{"g", 1 << 30}, {"m", 1 << 20}, {"k", 1 << 10}}

// ParseSize reads "1g", "512m", "64k", in either case, or plain bytes.
func ParseSize(s string) (Size, error) {
	digits, unit := strings.ToLower(s), int64(1)
	for _, u := range sizeUnits {
		if number, found := strings.CutSuffix(digits, u.suffix); found {
			digits, unit = number, u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || int64(n) > math.MaxInt64/unit {
		return 0, fmt.Errorf("%s is not a size such as \"512m\"", quote(s))
	}
	return Size(int64(n) * unit), nil
}

// String writes s in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// noun says what a field holds, for the error about a value of another type.
func (f field) noun() string {
	switch f.value.Interface().(type) {
	case bool:
		return "a boolean"
	case string:
		return "a string"
	case []string:
		return "a list of strings"
	case Size:
		return `a size such as "512m"`
	case CPUs:
		return `a number of processors such as "0.5"`
	default:
		return "a whole number"
	}
}

// set puts a decoded TOML value into the field and reports whether it is of a
// type that a person would expect there. Ranges are another matter.
func (f field) set(given any) bool {
	ok := false
	switch to := f.value.Addr().Interface().(type) {
	case *string:
		*to, ok = given.(string)
	case *bool:
		*to, ok = given.(bool)
	case *int64:
		*to, ok = given.(int64)
	case *int, *Seconds:
		var n int64
		if n, ok = given.(int64); ok && !f.value.OverflowInt(n) {
			f.value.SetInt(n)
		} else {
			ok = false
		}
	case *Size:
		switch v := given.(type) {
		case int64:
			*to, ok = Size(v), true
		case string:
			size, err := ParseSize(v)
			*to, ok = size, err == nil
		}
	case *CPUs:
		switch v := given.(type) {
		case int64:
			*to, ok = CPUs(v), true
		case float64:
			*to, ok = CPUs(v), true
		case string:
			n, err := strconv.ParseFloat(v, 64)
			*to, ok = CPUs(n), err == nil
		}
	case *[]string:
		list, isList := given.([]any)
		*to, ok = make([]string, len(list)), isList
		for i, element := range list {
			var isString bool
			(*to)[i], isString = element.(string)
			ok = ok && isString
		}
	}
	return ok
}

// number is the field's value for a comparison with its range.
func (f field) number() float64 {
	if f.value.CanFloat() {
		return f.value.Float()
	}
	return float64(f.value.Int())
}

// bounds reads the tag range, whose ends are written as the file would.
func (f field) bounds() (low, high string, inside func(float64) bool) {
	low, high, _ = strings.Cut(f.tag.Get("range"), "..")
	parse := func(s string) float64 {
		if n, err := strconv.ParseFloat(s, 64); err == nil {
			return n
		}
		size, err := ParseSize(s)
		if err != nil {
			panic("config: range of " + f.key + ": " + err.Error())
		}
		return float64(size)
	}
	from, to := parse(low), parse(high)
	return low, high, func(n float64) bool { return n >= from && n <= to } // false for NaN
}

// literal writes a value as the file would.
func literal(v reflect.Value) string {
	switch v := v.Interface().(type) {
	case string:
		return strconv.Quote(v)
	case []string:
		quoted := make([]string, len(v))
		for i, s := range v {
			quoted[i] = strconv.Quote(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case Size:
		return strconv.Quote(v.String())
	case CPUs:
		return strconv.Quote(v.String())
	default:
		return fmt.Sprint(v)
	}
}

// describe writes what a file has given, in bounded length.
func describe(given any) string {
	switch v := given.(type) {
	case string:
		return quote(v)
	case bool, int64, float64:
		return fmt.Sprint(v)
	case []any, []map[string]any:
		return "a list"
	case map[string]any:
		return "a table"
	default:
		return "a date or time"
	}
}

func quote(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
