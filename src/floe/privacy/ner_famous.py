"""Names that everybody knows and that are nobody's secret: the dead of history, and the invented.

Whole names only ("Marie Curie", not "Marie"), written with capitals. Living people are not in it,
for what is asked about them may be private, nor names that many others bear ("Adam Smith"). From
general knowledge; no test set was looked at.
"""

from __future__ import annotations

import re

_WHOLE = """
Abraham Lincoln|George Washington|Thomas Jefferson|Benjamin Franklin|Alexander Hamilton
Theodore Roosevelt|Franklin Delano Roosevelt|Franklin D. Roosevelt|Franklin Roosevelt
Eleanor Roosevelt|Woodrow Wilson|John F. Kennedy|John Fitzgerald Kennedy|Ronald Reagan
Richard Nixon|Dwight D. Eisenhower|Ulysses S. Grant|Robert E. Lee|Martin Luther King Jr.
Martin Luther King, Jr.|Martin Luther King|Malcolm X|Rosa Parks|Frederick Douglass
Harriet Tubman|Susan B. Anthony|Winston Churchill|Margaret Thatcher|Neville Chamberlain
Queen Victoria|Queen Elizabeth II|Queen Elizabeth|Anne Boleyn|Oliver Cromwell|Napoleon Bonaparte
Charles de Gaulle|Joan of Arc|Marie Antoinette|Maximilien Robespierre|Otto von Bismarck
Adolf Hitler|Joseph Stalin|Josef Stalin|Vladimir Lenin|Leon Trotsky|Mikhail Gorbachev
Nikita Khrushchev|Benito Mussolini|Fidel Castro|Che Guevara|Mahatma Gandhi|Jawaharlal Nehru
Nelson Mandela|Mother Teresa|Mao Zedong|Deng Xiaoping|Sun Yat-sen|Chiang Kai-shek|Ho Chi Minh
Genghis Khan|Kublai Khan|Alexander the Great|Julius Caesar|Mark Antony|Marcus Aurelius
Catherine the Great|Peter the Great|Simón Bolívar|Simon Bolivar|Christopher Columbus
Vasco da Gama|Ferdinand Magellan|Marco Polo|Amerigo Vespucci|Neil Armstrong|Yuri Gagarin
Amelia Earhart|Florence Nightingale|Albert Einstein|Isaac Newton|Galileo Galilei
Nicolaus Copernicus|Johannes Kepler|Tycho Brahe|Marie Curie|Pierre Curie|Niels Bohr|Max Planck
Werner Heisenberg|Erwin Schrödinger|Paul Dirac|Richard Feynman|Enrico Fermi|Robert Oppenheimer
J. Robert Oppenheimer|Stephen Hawking|Carl Sagan|Michael Faraday|James Clerk Maxwell
Nikola Tesla|Thomas Edison|Alexander Graham Bell|Guglielmo Marconi|Charles Darwin|Gregor Mendel
Louis Pasteur|Alexander Fleming|Rosalind Franklin|Francis Crick|Dmitri Mendeleev
Antoine Lavoisier|Blaise Pascal|Pierre de Fermat|Leonhard Euler|Carl Friedrich Gauss
Bernhard Riemann|David Hilbert|Kurt Gödel|Emmy Noether|Srinivasa Ramanujan|Alan Turing
John von Neumann|Claude Shannon|Ada Lovelace|Charles Babbage|Grace Hopper|Edsger Dijkstra
Edwin Hubble|Sigmund Freud|Ivan Pavlov|Jean Piaget|Karl Marx|Friedrich Engels
John Maynard Keynes|Milton Friedman|David Ricardo|Immanuel Kant|Friedrich Nietzsche
René Descartes|Thomas Hobbes|Jean-Jacques Rousseau|Baruch Spinoza|Arthur Schopenhauer
Søren Kierkegaard|Martin Heidegger|Jean-Paul Sartre|Simone de Beauvoir|Albert Camus
Hannah Arendt|Ludwig Wittgenstein|Bertrand Russell|John Stuart Mill|Jeremy Bentham
Thomas Aquinas|Niccolò Machiavelli|Mary Wollstonecraft|William Shakespeare|Jane Austen
Charles Dickens|Mark Twain|Leo Tolstoy|Fyodor Dostoevsky|Anton Chekhov|Alexander Pushkin
Ernest Hemingway|F. Scott Fitzgerald|George Orwell|Aldous Huxley|Virginia Woolf|Oscar Wilde
Edgar Allan Poe|Emily Dickinson|Walt Whitman|Sylvia Plath|T. S. Eliot|Herman Melville
Nathaniel Hawthorne|Henry David Thoreau|Ralph Waldo Emerson|Charlotte Brontë|Emily Brontë
Victor Hugo|Jules Verne|Marcel Proust|Alexandre Dumas|Franz Kafka|Hermann Hesse
Miguel de Cervantes|Gabriel García Márquez|Pablo Neruda|Jorge Luis Borges|Dante Alighieri
Rabindranath Tagore|J. R. R. Tolkien|J.R.R. Tolkien|C. S. Lewis|C.S. Lewis|Agatha Christie
Arthur Conan Doyle|H. G. Wells|H.P. Lovecraft|Isaac Asimov|Arthur C. Clarke|Philip K. Dick
Ray Bradbury|Kurt Vonnegut|Dr. Seuss|Geoffrey Chaucer|William Wordsworth|John Keats|Lord Byron
Leonardo da Vinci|Vincent van Gogh|Pablo Picasso|Claude Monet|Salvador Dalí|Salvador Dali
Frida Kahlo|Andy Warhol|Jackson Pollock|Johannes Vermeer|Gustav Klimt|Edvard Munch|Paul Cézanne
Henri Matisse|Wolfgang Amadeus Mozart|Ludwig van Beethoven|Johann Sebastian Bach|Frédéric Chopin
Franz Schubert|Richard Wagner|Johannes Brahms|Antonio Vivaldi|Igor Stravinsky|Pyotr Tchaikovsky
Claude Debussy|Louis Armstrong|Elvis Presley|John Lennon|Freddie Mercury|David Bowie|Bob Marley
Jimi Hendrix|Kurt Cobain|Aretha Franklin|Charlie Chaplin|Alfred Hitchcock|Stanley Kubrick
Akira Kurosawa|Walt Disney|Marilyn Monroe|Audrey Hepburn|Humphrey Bogart|Andrew Carnegie
John D. Rockefeller|Coco Chanel|Steve Jobs|Frank Lloyd Wright|Le Corbusier|Diego Maradona
Sherlock Holmes|Harry Potter|Hermione Granger|Ron Weasley|Albus Dumbledore|Lord Voldemort
Frodo Baggins|Bilbo Baggins|Indiana Jones|Luke Skywalker|Darth Vader|Han Solo|Mickey Mouse
Donald Duck|Homer Simpson|Bart Simpson|Peter Pan|Robin Hood|King Arthur|Romeo Montague
Juliet Capulet|Don Quixote|Jay Gatsby|Atticus Finch|Scout Finch|Holden Caulfield
Huckleberry Finn|Jane Eyre|Elizabeth Bennet|Ebenezer Scrooge|Jean Valjean|Anna Karenina
Captain Ahab|Santa Claus|Winnie the Pooh|Mona Lisa
"""
_NAMES = sorted({name for row in _WHOLE.split("\n") for name in row.split("|") if name}, key=len)
_FAMOUS = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, reversed(_NAMES)))})(?!\w)")
_LONGEST_CHARS = len(_NAMES[-1])


def is_famous(text: str, start: int, end: int) -> bool:
    """Whether `text[start:end]` is such a name or a part of one that stands there."""
    floor = max(0, start - _LONGEST_CHARS)
    for match in _FAMOUS.finditer(text, floor, end + _LONGEST_CHARS):
        if match.start() <= start and text[match.end() : end] in ("", "'s", "’s"):
            return True
    return False
